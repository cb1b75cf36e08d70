"""The colour of a probability: one continuous scale, in a light and in a dark version.

From orange, unsure, to blue, sure: told apart with any colour vision, and by lightness alone too. Colours are
mixed in OKLab, where equal steps look equal, and are all far enough from the text's colour to be read.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Theme = Literal["light", "dark"]

INK: dict[Theme, str] = {"light": "#17212b", "dark": "#f4f6f8"}
"""Colour of text that stands on the scale."""

STOPS: dict[Theme, tuple[str, ...]] = {
    "light": ("#ee8420", "#f6ad5e", "#f9d5a4", "#e4e7e0", "#d8ebfb"),
    "dark": ("#b0540a", "#8a4c1c", "#5c4632", "#2f4050", "#173c5e"),
}
"""Colours at equal distances from probability 0 to 1."""

_RGB_TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_LMS_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def colour(probability: float, theme: Theme) -> str:
    """Returns the colour of a probability as #rrggbb.

    Args:
        probability: From 0 to 1.
        theme: For a light or a dark page.
    """
    stops = STOPS[theme]
    place = min(max(probability, 0.0), 1.0) * (len(stops) - 1)
    left = min(int(place), len(stops) - 2)
    share = place - left
    return _hex((1 - share) * _lab(stops[left]) + share * _lab(stops[left + 1]))


def gradient_colours(theme: Theme, count: int) -> list[str]:
    """Returns that many colours at equal distances along the scale, for a legend."""
    return [colour(i / (count - 1), theme) for i in range(count)]


def gradient(theme: Theme) -> str:
    """Returns the scale as a CSS gradient."""
    return f"linear-gradient(90deg, {', '.join(gradient_colours(theme, 21))})"


def luminance(colour: str) -> float:
    """Returns the relative luminance of #rrggbb as WCAG 2 defines it, from 0 to 1."""
    return float(_linear(colour) @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    """Returns the contrast ratio of two colours as WCAG 2 defines it, from 1 to 21."""
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def _linear(colour: str) -> NDArray[np.float64]:
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def _lab(colour: str) -> NDArray[np.float64]:
    return _LMS_TO_LAB @ np.cbrt(_RGB_TO_LMS @ _linear(colour))


def _hex(lab: NDArray[np.float64]) -> str:
    linear = np.linalg.solve(_RGB_TO_LMS, np.linalg.solve(_LMS_TO_LAB, lab) ** 3).clip(0, 1)
    values = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(float(value) * 255):02x}" for value in values)
