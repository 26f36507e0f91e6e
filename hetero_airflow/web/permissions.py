"""What a user may see and change, by Airflow's auth manager."""

from collections.abc import Callable
from http import HTTPStatus

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_access_view
from fastapi import HTTPException, Request

DRAIN_REFUSED = "You may not drain or undrain devices. Ask for the permission to edit Airflow's pools."


def require_access_to_jobs(request: Request, user: GetUserDep) -> None:
    """Refuse a user who may not see Airflow's jobs.

    :raises HTTPException: the user may not, or has a role that Airflow's auth manager does not know
    """
    _check(lambda: requires_access_view(AccessView.JOBS)(request, user), "to see Airflow's jobs")


def require_access_to_task(request: Request, user: GetUserDep) -> None:
    """Refuse a user who may not see the task instances of the DAG ``dag_id`` of the path.

    :raises HTTPException: the user may not, or has a role that Airflow's auth manager does not know
    """
    check = requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE)
    _check(lambda: check(request, user), "to see the tasks of this DAG")


def require_access_to_drains(user: GetUserDep) -> None:
    """Refuse a user who may not edit Airflow's pools.

    :raises HTTPException: the user may not
    """
    if not may_drain(user):
        raise HTTPException(HTTPStatus.FORBIDDEN, DRAIN_REFUSED)


def may_drain(user: BaseUser) -> bool:
    """Whether a user may edit Airflow's pools, and so may drain workers."""
    return _allows(lambda: get_auth_manager().is_authorized_pool(method="PUT", user=user))


def may_see_fleet(user: BaseUser) -> bool:
    """Whether a user may see Airflow's jobs, and so all workers and devices."""
    return _allows(lambda: get_auth_manager().is_authorized_view(access_view=AccessView.JOBS, user=user))


def readable_dags(user: BaseUser) -> set[str]:
    """The ids of the DAGs that a user may read."""
    dag_ids: set[str] = get_auth_manager().get_authorized_dag_ids(user=user)
    return dag_ids


def _allows(check: Callable[[], bool]) -> bool:
    """The answer of a check; no for a role that the auth manager does not know."""
    try:
        return bool(check())
    except LookupError:
        return False


def _check(check: Callable[[], None], permission: str) -> None:
    try:
        check()
    except LookupError as error:
        detail = (
            f"hetero_airflow can't check the permission {permission}; found a role that the auth manager does "
            f"not know: {error}. Give this user one of its roles."
        )
        raise HTTPException(HTTPStatus.FORBIDDEN, detail) from error
