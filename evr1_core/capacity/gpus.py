"""Kinds of GPU by name. Numbers are those of the maker's data sheets; memory is what the driver reports as the total, a little less.

Data sheets of kinds since Ampere give tensor speeds with 2:4 sparsity, which are twice the dense ones that are meant here.
"""

from __future__ import annotations

from dataclasses import dataclass

from evr1_core.errors import RequestError, nearest


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU."""

    name: str
    gib: float
    """Memory, GiB."""
    tflops: float
    """Dense bfloat16 with float32 sums, 10^12 operations per second."""
    bandwidth: float
    """Of its memory, 10^12 bytes per second."""


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100-40", 40.0, 312.0, 1.555),  # NVIDIA A100 data sheet, SXM4: 40 GB, 1,555 GB/s, 624 with sparsity
        Gpu("a100-80", 80.0, 312.0, 2.039),  # the same, 80 GB: 2,039 GB/s
        Gpu("h100", 79.6, 989.4, 3.35),  # NVIDIA H100 data sheet, SXM5: 80 GB, 3.35 TB/s, 1,979 with sparsity
        Gpu("h100-pcie", 79.6, 756.0, 2.0),  # NVIDIA H100 data sheet, PCIe: 80 GB, 2 TB/s, 1,513 with sparsity
        Gpu("h200", 140.4, 989.4, 4.8),  # NVIDIA H200 data sheet, SXM: 141 GB, 4.8 TB/s, 1,979 with sparsity
        Gpu("h20", 95.6, 148.0, 4.0),  # no public data sheet; resellers agree on 96 GB, 4.0 TB/s, 148 dense
        Gpu("b200", 179.0, 2250.0, 8.0),  # NVIDIA HGX B200 data sheet, an eighth of it: 36 PFLOP/s with sparsity; driver: 179 GiB
        Gpu("l40", 45.0, 181.05, 0.864),  # NVIDIA L40 data sheet: 48 GB with ECC, 864 GB/s, 181.05 dense
        Gpu("l40s", 45.0, 362.05, 0.864),  # NVIDIA L40S data sheet: 48 GB with ECC, 864 GB/s, 362.05 dense
        Gpu("a6000", 48.0, 154.8, 0.768),  # NVIDIA Ampere GA102 white paper, RTX A6000
        Gpu("rtx-6000-ada", 48.0, 364.2, 0.960),  # NVIDIA RTX 6000 Ada data sheet: 1,457 in 8 bits with sparsity
        Gpu("rtx-4090", 24.0, 165.2, 1.008),  # NVIDIA Ada GPU architecture white paper
        Gpu("rtx-3090", 24.0, 71.0, 0.936),  # NVIDIA Ampere GA102 white paper
    )
}


def find_gpu(name: str | None, gib: float | None = None, tflops: float | None = None, bandwidth: float | None = None) -> Gpu:
    """A known kind, with single numbers replaced where they are given; an unknown one by its numbers.

    Raises RequestError for an unknown kind without memory and speed. Without a bandwidth it is estimated from the speed.
    """
    plain = (name or "").strip().lower().replace(" ", "-").replace("_", "-").removeprefix("nvidia-")
    known = GPUS.get(plain) or GPUS.get(plain.removesuffix("gb")) or GPUS.get(plain.replace("rtx", "rtx-").replace("--", "-"))
    if known is not None:
        return Gpu(known.name, gib or known.gib, tflops or known.tflops, bandwidth or known.bandwidth)
    if gib is None or tflops is None:
        what = f"--gpu {name}: not a known kind{nearest(plain, GPUS)}" if name else "which kind of GPU? Give --gpu"
        raise RequestError(f"{what}; known are {', '.join(GPUS)}; another one is given by --gpu-gib and --gpu-tflops of `evr1 data plan`")
    # About 300 operations per byte is usual among the kinds above.
    return Gpu(plain or "custom", gib, tflops, bandwidth or tflops / 300)
