"""The app "outrider" in INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate

from outrider.integrations.django.install import install


class OutriderConfig(AppConfig):
    name = "outrider.integrations.django"
    label = "outrider"
    verbose_name = "Outrider"

    def ready(self) -> None:
        post_migrate.connect(install, sender=self)
