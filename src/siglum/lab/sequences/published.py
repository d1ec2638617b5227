"""Published rows of the same categories, quoted: R@5, R@10, NDCG@5, NDCG@10."""

from __future__ import annotations

PublishedRow = tuple[float, float, float, float]
PUBLISHED: dict[str, dict[str, PublishedRow]] = {
    "beauty": {
        "TIGER, as published": (0.0454, 0.0648, 0.0321, 0.0384),
        "TIGER in the PRO paper": (0.039038, 0.055270, 0.026157, 0.031408),
        "PRO in the PRO paper": (0.042794, 0.062961, 0.028821, 0.035295),
        "TIGER in cornac, RQ-VAE": (0.0419, 0.0634, 0.0270, 0.0338),
    },
    "toys": {
        "TIGER, as published": (0.0521, 0.0712, 0.0371, 0.0432),
        "TIGER in the PRO paper": (0.035906, 0.052596, 0.024123, 0.029479),
        "PRO in the PRO paper": (0.040645, 0.060066, 0.026946, 0.033198),
        "TIGER in cornac, RQ-VAE": (0.0362, 0.0583, 0.0237, 0.0308),
    },
    "sports": {
        "TIGER, as published": (0.0264, 0.0400, 0.0181, 0.0225),
        "TIGER in the PRO paper": (0.021771, 0.033092, 0.014115, 0.017762),
        "PRO in the PRO paper": (0.024046, 0.037474, 0.015183, 0.019501),
        "TIGER in cornac, RQ-VAE": (0.0240, 0.0394, 0.0155, 0.0204),
    },
}
"""By category. The paper cites the corpus of 2023, while its figures lie in the range of that of 2014."""
