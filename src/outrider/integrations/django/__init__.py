"""Django: publish inside `transaction.atomic()`, handlers with the ORM, `manage.py outrider`.

In INSTALLED_APPS it is the app "outrider". Nothing here needs settings before it is used.
"""

from __future__ import annotations

from outrider.integrations.django.driver import DRIVER
from outrider.integrations.django.handlers import orm

__all__ = ["DRIVER", "orm"]
