"""The energy and emissions of a run: an estimate, with all that it assumes.

Nothing here is measured. Counters of energy are out of reach in containers and virtual machines, and count what else runs
on the machine; packages that offer a figure there estimate it, too.
"""

from typing import Any

WATTS = {"core": 12.0, "accelerator": 200.0}
"""Of a processor whose kind is not known, as Green Algorithms takes it (Lannelongue et al. 2021, arXiv:2007.07610; its
tables `TDP_cpu` and `TDP_gpu`, line "Any")."""


def estimate_emissions(
    minutes: float,
    processors: int,
    *,
    accelerator: bool = False,
    watts: float | None = None,
    grams_co2_per_kwh: float | None = None,
) -> dict[str, Any]:
    """Return time, processors and watts multiplied; memory, cooling and whatever else the machine did are left out.

    Args:
        minutes: of training.
        processors: cores that computed, or accelerators.
        accelerator: whether the processors are these.
        watts: of one processor; by default as [`WATTS`] has it.
        grams_co2_per_kwh: carbon intensity of the electricity.

    Returns:
        `kilowatt_hours` and all that it follows from, for `metrics.json`; `grams_co2` is None without an intensity.
    """
    kind = "accelerator" if accelerator else "core"
    assumed = watts is None
    watts = WATTS[kind] if watts is None else watts
    kilowatt_hours = minutes / 60 * processors * watts / 1000
    grams = None if grams_co2_per_kwh is None else float(f"{kilowatt_hours * grams_co2_per_kwh:.4g}")
    return {
        "measured": False,
        "kilowatt_hours": float(f"{kilowatt_hours:.4g}"),
        "minutes": round(minutes, 3),
        "processors": processors,
        "processor": kind,
        "watts": watts,
        "watts_assumed": assumed,
        "grams_co2_per_kwh": grams_co2_per_kwh,
        "grams_co2": grams,
    }
