"""Pods that enrol with the token of their service account: the cluster says whose it is (TokenReview).

The pod needs a projected token for our own audience, so that no other service can use it here, nor we it there. Since
Kubernetes 1.21 such a token belongs to one pod and is worth nothing once that pod is deleted, and the review names the
pod. Sources: kubernetes.io, "Configure Service Accounts for Pods", and KEP-1205, bound service account tokens.
"""

import re
from dataclasses import dataclass

from kubernetes.client import (  # type: ignore[import-untyped]
    ApiException,
    AuthenticationV1Api,
    Configuration,
    V1TokenReview,
    V1TokenReviewSpec,
)
from kubernetes.config import ConfigException, load_config  # type: ignore[import-untyped]
from urllib3.exceptions import HTTPError

from hetero_airflow.agent.protocol import POD_AUDIENCE
from hetero_airflow.contract.airflow_options import options
from hetero_airflow.engines.kubernetes.clients import CALL_LIMIT_S, OneTryClient, close
from hetero_airflow.errors import IdentityError, StoreUnavailable, shorten
from hetero_airflow.settings import SECTION, default

_USER = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")
_POD = "authentication.kubernetes.io/pod-name"


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """The pod that a token belongs to."""

    namespace: str
    account: str
    pod: str

    @property
    def joined_by(self) -> str:
        """Who vouches for the agents of such pods."""
        return f"kubernetes:{self.namespace}/{self.account}"


def allowed_accounts() -> frozenset[str]:
    """``NAMESPACE/NAME`` of each service account whose pods may run agents."""
    text = str(options().get(SECTION, "kubernetes_agents", fallback=default("kubernetes_agents")))
    return frozenset(filter(None, map(str.strip, text.split(","))))


def review(token: str, allowed: frozenset[str]) -> PodIdentity:
    """The pod that a token belongs to. Blocks on the cluster.

    :raises IdentityError: the cluster does not vouch for it, or its service account may run no agents
    :raises StoreUnavailable: the cluster does not answer
    """
    asked = "to enrol an agent with the token of its pod"
    if not allowed:
        remedy = "Name the service account of the agents there, as NAMESPACE/NAME, or use `airflow hetero token`"
        raise IdentityError(asked, found=f"no service account in [{SECTION}] kubernetes_agents", remedy=remedy)
    spec = V1TokenReviewSpec(token=token, audiences=[POD_AUDIENCE])
    body = V1TokenReview(api_version="authentication.k8s.io/v1", kind="TokenReview", spec=spec)
    try:
        api = AuthenticationV1Api(_client())
        try:
            status = api.create_token_review(body).status
        finally:
            close(api)
    except ApiException as error:
        found = f"status {error.status} of the cluster for a TokenReview"
        remedy = "Let the API server's service account create tokenreviews (docs/kubernetes/rbac.yaml)"
        raise StoreUnavailable(asked, found=found, remedy=remedy) from error
    except (HTTPError, ConfigException) as error:
        raise StoreUnavailable(asked, found=f"no cluster ({type(error).__name__})", remedy="Try again") from error
    if not status.authenticated or POD_AUDIENCE not in (status.audiences or ()):
        found = f"a token that is not valid for the audience {POD_AUDIENCE}"
        remedy = "Mount a projected serviceAccountToken with this audience (docs/agents.md)"
        raise IdentityError(asked, found=found, remedy=remedy)
    user = _USER.fullmatch(status.user.username or "")
    pods = (status.user.extra or {}).get(_POD) or []
    if user is None or len(pods) != 1:
        raise IdentityError(asked, found="a token that belongs to no pod", remedy="Use a projected serviceAccountToken")
    identity = PodIdentity(user[1], user[2], pods[0])
    if f"{identity.namespace}/{identity.account}" not in allowed:
        account = shorten(f"{identity.namespace}/{identity.account}")
        remedy = "Name it there if its pods may run agents"
        raise IdentityError(asked, found=f"{account}, which [{SECTION}] kubernetes_agents does not name", remedy=remedy)
    return identity


def check_name(identity: PodIdentity, worker_id: str) -> None:
    """Check that the worker has the pod's name.

    :raises IdentityError: it has another one
    """
    if worker_id != identity.pod:
        raise IdentityError(
            f"to enrol worker {shorten(worker_id)}",
            found=f"the token of the pod {shorten(identity.pod)}",
            remedy=f"Start the agent with --name {identity.pod}, the pod's name",
        )


def _client() -> OneTryClient:
    configuration = Configuration()
    load_config(client_configuration=configuration)
    return OneTryClient(configuration, CALL_LIMIT_S)
