"""Airflow's Execution API, without which no task starts and none reports its end: whether it answers."""

from http import HTTPStatus

import httpx

HEALTH_PATH = "health"
"""Below the address of the Execution API, so each server with that API has it. It needs no token and no database."""

_FROM_A_PROXY = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})
"""What a proxy answers when no server behind it does."""


def is_outage(error: BaseException) -> bool:
    """Whether a call failed because no server answered it. An error that the server itself reports is no outage.

    >>> is_outage(httpx.ConnectError("Connection refused"))
    True
    >>> request, response = httpx.Request("GET", "http://airflow"), httpx.Response(500)
    >>> is_outage(httpx.HTTPStatusError("database error", request=request, response=response))
    False
    """
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in _FROM_A_PROXY
    return isinstance(error, httpx.RequestError)


def find_problem(client: httpx.Client) -> str | None:
    """Why the API server does not answer; None if it does. Asks once, and blocks for the client's timeout at most.

    :param client: has the address of the Execution API; its own retries are not used
    """
    try:
        response = client.send(client.build_request("GET", HEALTH_PATH))
    except httpx.HTTPStatusError as error:
        return _status(error.response)
    except Exception as error:  # noqa: BLE001  whatever a transport raises is no answer
        return f"{type(error).__name__}: {error}"
    return None if response.status_code == HTTPStatus.OK else _status(response)


def _status(response: httpx.Response) -> str:
    return f"HTTP {response.status_code}"
