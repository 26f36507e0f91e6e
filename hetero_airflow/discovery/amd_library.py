"""AMD's Python library amdsmi: its answers in the format of ``amd-smi --json``.

It comes with ROCm (``/opt/rocm/share/amd_smi``) and needs libamd_smi.so. It is faster than the tool, which starts
Python for each of three commands. Its calls and answers on ROCm 7.0::

    amdsmi_get_gpu_asic_info(handle)    {'market_name': 'AMD Instinct MI210', 'asic_serial': '0x...', ...}
    amdsmi_get_gpu_device_bdf(handle)   '0000:23:00.0'
    amdsmi_get_gpu_vram_usage(handle)   {'vram_total': 65520, 'vram_used': 10}
    amdsmi_get_gpu_driver_info(handle)  {'driver_name': 'amdgpu', 'driver_version': '6.16.13', ...}
    amdsmi_get_gpu_activity(handle)     {'gfx_activity': 0, 'umc_activity': 0, 'mm_activity': 'N/A'}
    amdsmi_get_power_info(handle)       {'socket_power': 41, ...}
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from hetero_airflow.discovery.sources.values import to_number

_XGMI = 2
"""amdsmi_link_type_t in ROCm 6.4 and later: 0 internal, 1 PCIe, 2 XGMI."""


def read_library(name: str = "amdsmi") -> tuple[list[Any], list[Any], list[Any]] | None:
    """The static, metric and topology answers of all GPUs; None if the library can't be used."""
    try:
        amdsmi: Any = import_module(name)
    except (ImportError, OSError, AttributeError, KeyError):
        return None  # not installed, or its shared library, which the import loads, is missing
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException:
        return None  # no driver: the tool gives a message for this
    try:
        return _read(amdsmi)
    finally:
        amdsmi.amdsmi_shut_down()


def _read(amdsmi: Any) -> tuple[list[Any], list[Any], list[Any]]:
    def ask(call: str, *arguments: Any) -> Any:
        try:
            return getattr(amdsmi, call)(*arguments)
        except (amdsmi.AmdSmiException, AttributeError):
            return None  # this chip or this version of the library has no such call

    handles = list(ask("amdsmi_get_processor_handles") or ())
    static, metric, topology = [], [], []
    for number, handle in enumerate(handles):
        vram = ask("amdsmi_get_gpu_vram_usage", handle) or {}
        static.append({
            "gpu": number,
            "asic": ask("amdsmi_get_gpu_asic_info", handle),
            "board": ask("amdsmi_get_gpu_board_info", handle),
            "bus": {"bdf": ask("amdsmi_get_gpu_device_bdf", handle)} | _pcie(ask("amdsmi_get_pcie_info", handle)),
            "driver": {"version": (ask("amdsmi_get_gpu_driver_info", handle) or {}).get("driver_version")},
            "numa": {"node": ask("amdsmi_topo_get_numa_node_number", handle)},
            "partition": {
                "compute_partition": ask("amdsmi_get_gpu_compute_partition", handle),
                "memory_partition": ask("amdsmi_get_gpu_memory_partition", handle),
            },
            "vram": {"size": vram.get("vram_total")},
        })  # fmt: skip
        metric.append({
            "gpu": number,
            "usage": ask("amdsmi_get_gpu_activity", handle),
            "power": {"socket_power": _power(ask("amdsmi_get_power_info", handle))},
            "temperature": {"hotspot": _temperature(amdsmi, ask, handle)},
            "ecc": {
                "total_uncorrectable_count": (ask("amdsmi_get_gpu_total_ecc_count", handle) or {}).get(
                    "uncorrectable_count"
                )
            },
            "mem_usage": {"free_vram": _free(vram)},
        })  # fmt: skip
        topology.append({"gpu": number, "links": [
            {"gpu": index, "link_type": "XGMI"}
            for index, peer in enumerate(handles)
            if index != number and (ask("amdsmi_topo_get_link_type", handle, peer) or {}).get("type") == _xgmi(amdsmi)
        ]})  # fmt: skip
    return static, metric, topology


def _pcie(info: Any) -> dict[str, Any]:
    fixed = (info or {}).get("pcie_static") or {}
    version = fixed.get("pcie_interface_version")
    return {"max_pcie_width": fixed.get("max_pcie_width"), "pcie_interface_version": f"Gen {version}"}


def _power(info: Any) -> Any:
    names = ("socket_power", "current_socket_power", "average_socket_power")
    return next((info[name] for name in names if info and to_number(info.get(name))), None)


def _temperature(amdsmi: Any, ask: Callable[..., Any], handle: Any) -> Any:
    try:
        sensor, current = amdsmi.AmdSmiTemperatureType.HOTSPOT, amdsmi.AmdSmiTemperatureMetric.CURRENT
    except AttributeError:
        return None
    return ask("amdsmi_get_temp_metric", handle, sensor, current)


def _free(vram: dict[str, Any]) -> Any:
    total, used = to_number(vram.get("vram_total")), to_number(vram.get("vram_used"))
    return None if total is None or used is None else max(0.0, total - used)


def _xgmi(amdsmi: Any) -> int:
    kinds = getattr(amdsmi, "AmdSmiLinkType", None)
    return int(getattr(kinds, "AMDSMI_LINK_TYPE_XGMI", _XGMI))
