from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.auth.models import User
from django.db import transaction

from .tasks import welcome

if TYPE_CHECKING:
    from django.tasks import TaskResult


def sign_up(username: str, email: str) -> TaskResult[Any, str]:
    with transaction.atomic():
        user = User.objects.create_user(username, email)
        result = welcome.enqueue(user.pk)
        if User.objects.filter(email=email).count() > 1:
            raise ValueError(f"{email} has an account")  # neither the user nor the task exists
    return result
