"""DECIMALs as servers print them."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc


def without_exponents(text: pa.StringArray) -> pa.StringArray:
    """What Arrow prints of decimals, with all digits: nearer to 0 than 0.000001, it writes an exponent (0 in a
    DECIMAL(20,8) is `0E-8`), as no server does."""
    small = pc.fill_null(pc.match_substring(text, "E"), False)
    if not pc.any(small).as_py():
        return text
    plain = [f"{Decimal(value):f}" for value in text.filter(small).to_pylist()]
    return pc.replace_with_mask(text, small, pa.array(plain, pa.string()))
