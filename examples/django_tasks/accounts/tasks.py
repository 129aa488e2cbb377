from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib.auth.models import User

if TYPE_CHECKING:
    from django.tasks import task
else:
    try:
        from django.tasks import task  # Django 6
    except ImportError:
        from django_tasks import task  # Django 5.2: pip install django-tasks


@task
def welcome(user_id: int) -> str:
    return f"welcomed {User.objects.get(pk=user_id).username}"
