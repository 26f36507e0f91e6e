"""What `airflow hetero devices --features` prints."""

from hetero_airflow.cli.workers.devices import features_report
from hetero_airflow.model.devices.features import FLAGS_KEY, device_features
from hetero_airflow.testing import a_cpu, a_device


def test_the_features_of_each_device_are_shown_and_what_is_unknown(render):
    devices = (
        a_cpu(details={FLAGS_KEY: "avx512_vnni"}),
        a_device("GPU-0", model="h100", capability="9.0"),
        a_device("GPU-1", model="x1", capability="99.0", index=1),
        a_device("SIM-0", model="h100", capability=None, index=2, simulated=True),
    )
    assert (
        render(features_report(devices, {device.id: device_features(device) for device in devices}))
        == """\
DEVICE                           ARCHITECTURE  COMPUTES FAST  TRAINS IN   COMPILER       COLLECTIVES
generic/x86-64 (cpu 0)           CPU           INT8           FP32        Inductor       Gloo
                                                                          (C++)
nvidia/h100 (gpu 0)              Hopper        TF32 BF16      BF16        Inductor       NCCL
                                 Tensor Cores  FP16 FP8 INT8              (Triton)
nvidia/x1 (gpu 1)                unknown       unknown        FP32        unknown        unknown
nvidia/h100 (simulated) (gpu 2)  unknown       unknown        as the CPU  unknown        unknown
Unknown: GPU-1: no rule for its compute capability 99.0. A task there trains in FP32.
Unknown: SIM-0: its probe reports no compute capability."""
    )
