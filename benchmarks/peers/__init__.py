"""Outrider beside its peers: `make bench PEERS=1`. Each system is a program with the same modes (peer.py)."""
