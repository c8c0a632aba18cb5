"""Turns an action into requests to a guest. Pure."""

from dataclasses import dataclass

from rlanything.domains.osworld.actions import MAX_PIXELS, MAX_WAIT_S, Action

PYAUTOGUI_NAMES = {"escape": "esc", "win": "winleft", "menu": "apps"}  # pyautogui's names of keys, where ours differ
PIXELS_PER_CLICK = 10  # a click of the wheel for so many asked pixels: agents say 100 or 500 to turn a page


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request to a guest: code for pyautogui, a text to type, or a pause."""

    code: str = ""
    text: str = ""
    pause_s: float = 0.0


def requests(action: Action, screen: tuple[int, int]) -> list[Request]:
    """The requests that perform an action on a screen of this size [pixels]."""
    kind, point = action.kind, action.point(*screen)
    move = f"pyautogui.moveTo({point[0]}, {point[1]}); " if point else ""
    keys = [PYAUTOGUI_NAMES.get(key, key) for key in action.keys or ()]
    if kind == "wait":
        return [Request(pause_s=min(action.time or 0.0, MAX_WAIT_S))]
    if kind == "type":
        return [Request(text=action.text or "")]
    if kind == "left_click_drag" and point:
        return [Request(code=f"pyautogui.dragTo({point[0]}, {point[1]}, duration=0.3, button='left')")]
    if kind in ("scroll", "hscroll"):
        wanted = max(-MAX_PIXELS, min(MAX_PIXELS, action.pixels or 0))
        clicks = round(wanted / PIXELS_PER_CLICK) or (1 if wanted > 0 else -1)
        return [Request(code=f"{move}pyautogui.{kind}({clicks})")] if wanted else [Request(code=move or "pass")]
    code = {
        "key": f"pyautogui.hotkey(*{keys!r})",
        "key_down": "; ".join(f"pyautogui.keyDown({key!r})" for key in keys),
        "key_up": "; ".join(f"pyautogui.keyUp({key!r})" for key in keys),
        "mouse_move": "",
        "left_click": "pyautogui.click()",
        "right_click": "pyautogui.rightClick()",
        "middle_click": "pyautogui.middleClick()",
        "double_click": "pyautogui.click(clicks=2, interval=0.05)",
        "triple_click": "pyautogui.click(clicks=3, interval=0.05)",
    }[kind]
    return [Request(code=move + code)]
