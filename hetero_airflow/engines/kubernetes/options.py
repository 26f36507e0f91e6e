"""The options of [hetero] for Kubernetes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hetero_airflow.engines.kubernetes.names import is_extended_resource, is_label_value, is_subdomain
from hetero_airflow.errors import SettingsError, shorten
from hetero_airflow.model.request import Priority
from hetero_airflow.settings import SECTION, default
from hetero_airflow.validation import json_object

RESOURCES = "kubernetes_resources"
PRIORITY_CLASSES = "kubernetes_priority_classes"
CLUSTERS = "kubernetes_clusters"


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Names that only the owner of a cluster knows."""

    resources: Mapping[str, str] = field(default_factory=dict)
    """Device part of a request → extended resource."""
    priority_classes: Mapping[str, str] = field(default_factory=dict)
    """Priority → PriorityClass. A priority without a row gets none."""
    clusters: Mapping[str, str] = field(default_factory=dict)
    """Site → Airflow connection; empty for the cluster of ``[kubernetes_executor]``."""


def cluster_options(read: Callable[[str, str, str], object]) -> ClusterOptions:
    """The configured options.

    :param read: (section, option, default) → text

    >>> cluster_options(lambda section, name, default: default)
    ClusterOptions(resources={}, priority_classes={}, clusters={})

    :raises SettingsError: an option is no JSON object, or has a name that Kubernetes does not accept
    """
    resources = _names(read, RESOURCES, is_extended_resource, '{"xilinx/fpga": "xilinx.com/fpga-u250"}')
    classes = _names(read, PRIORITY_CLASSES, is_subdomain, '{"urgent": "gpu-urgent"}')
    for name in classes:
        if name not in tuple(Priority):
            raise SettingsError(
                f"[{SECTION}] {PRIORITY_CLASSES}",
                found=f"the priority {shorten(name)}",
                remedy=f"Use {', '.join(Priority)}",
            )
    clusters = _names(read, CLUSTERS, bool, '{"eu": "kubernetes_eu"}')
    for site in clusters:
        if not site or not is_label_value(site):
            raise SettingsError(
                f"[{SECTION}] {CLUSTERS}",
                found=f"the site {shorten(site)}, which can't be a label value",
                remedy="Use at most 63 letters, digits, dots, dashes and underscores",
            )
    return ClusterOptions(resources, classes, clusters)


def _names(
    read: Callable[[str, str, str], object], option: str, is_name: Callable[[str], bool], example: str
) -> dict[str, str]:
    text = str(read(SECTION, option, default(option)))
    names = json_object(text, f"[{SECTION}] {option}", f"Write it as {example}")
    for key, name in names.items():
        if not isinstance(name, str) or not is_name(name):
            raise SettingsError(
                f"[{SECTION}] {option}",
                found=f"{shorten(name)} for {shorten(key)}, which Kubernetes does not accept as a name",
                remedy=f"Write it as {example}",
            )
    return {str(key).lower(): name for key, name in names.items()}
