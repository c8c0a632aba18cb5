"""Actions change a drawn desktop. An action that cannot be carried out changes nothing."""

from rlanything.domains.osworld.actions import Action
from rlanything.domains.osworld.canvas import words
from rlanything.domains.osworld.canvas.desk import HEIGHT, PAGE, WIDTH, Desk, Dialog, Kind, Widget
from rlanything.domains.osworld.canvas.layout import NOTCH, on_top, slider_start
from rlanything.domains.osworld.canvas.words import CANCEL, NEW_NAME, OK, TRASH

MAX_TYPED = 14  # characters of a field


def perform(desk: Desk, action: Action) -> bool:
    """Carry out an action. Returns False if it hit nothing. Without a coordinate it acts where the pointer is."""
    if desk.busy:
        desk.busy -= 1
        return action.kind == "wait"
    desk.pointer = at = action.point(WIDTH, HEIGHT) or desk.pointer
    widget = next((w for w in reversed(on_top(desk)) if at and w.covers(*at)), None)
    match action:
        case Action(kind="left_click" | "double_click" | "triple_click") if at:
            return _click(desk, widget, at[0], twice=action.kind != "left_click")
        case Action(kind="mouse_move"):
            desk.held = widget.name if widget and widget.kind is Kind.DOCUMENT else None
            return widget is not None
        case Action(kind="left_click_drag"):
            return _drop(desk, widget)
        case Action(kind="scroll", pixels=int(pixels)):
            return _scroll(desk, pixels)
        case Action(kind="type", text=str(text)):
            return _type(desk, text)
        case Action(kind="key", keys=tuple(keys)):
            return any([_press(desk, key) for key in keys])
    return action.kind == "wait"


def _click(desk: Desk, widget: Widget | None, x: int, twice: bool) -> bool:
    if widget is None:
        hit, desk.menu = desk.menu is not None, None
        return hit
    name = widget.name
    match widget.kind:
        case Kind.ICON:
            return twice and _start(desk, name)
        case Kind.DOCUMENT:
            return False
        case Kind.CLOSE:
            desk.program = "Files" if desk.program == "Viewer" else None
            desk.menu = desk.held = None
        case Kind.TAB:
            desk.tab = name
        case Kind.SWITCH | Kind.CHECK:
            desk.switched[name] = not desk.switched[name]
        case Kind.SLIDER:
            desk.number[name] = min(words.TOP, max(0, round((x - slider_start(widget)) / NOTCH)))
        case Kind.LESS | Kind.MORE:
            control, step = name[:-2], 1 if widget.kind is Kind.MORE else -1
            desk.number[control] = min(words.TOP, max(0, desk.number[control] + step))
        case Kind.OPTION:
            desk.choice[words.THEME] = name
        case Kind.LIST:
            desk.menu = name
        case Kind.ITEM:
            assert desk.menu
            desk.choice[desk.menu], desk.menu = name, None
        case Kind.FILE:
            desk.selected = name
            if twice:
                desk.opened, desk.program = name, "Viewer"
        case Kind.FIELD:
            _focus(desk, name)
        case Kind.BUTTON:
            return _push(desk, name)
    return True


def _start(desk: Desk, name: str) -> bool:
    if name not in words.PROGRAMS:
        return False
    desk.program = name
    if name == "Files":
        desk.page, desk.selected, desk.seen = 0, None, frozenset({0})
    if name == "Form":
        desk.focus = None
    return True


def _focus(desk: Desk, name: str) -> None:
    if name == NEW_NAME and desk.dialog:
        desk.dialog.focused = desk.dialog.replaces = True
    else:
        desk.focus, desk.replaces, desk.sent = name, True, None


def _push(desk: Desk, name: str) -> bool:
    if desk.dialog:
        dialog, desk.dialog = desk.dialog, None
        _answer(desk, dialog, name)
    elif desk.program == "Files" and desk.selected:
        if name == "Open":
            desk.opened, desk.program = desk.selected, "Viewer"
        else:
            desk.dialog = Dialog(kind=name.lower(), focused=name == "Rename")
    elif desk.program == "Form" and name == OK:
        desk.sent = dict(desk.typed)
    elif desk.program == "Form":
        desk.program = None
    else:
        return False
    return True


def _answer(desk: Desk, dialog: Dialog, name: str) -> None:
    if name != OK or desk.selected not in desk.files:
        return
    index = desk.files.index(desk.selected)
    if dialog.kind == "delete":
        name = desk.files.pop(index)
        desk.deleted.append(desk.renamed.pop(name, name))
        desk.selected, desk.page = None, min(desk.page, max(0, (len(desk.files) - 1) // PAGE))
    elif dialog.kind == "rename" and dialog.text and dialog.text not in desk.files:
        first = desk.renamed.pop(desk.selected, desk.selected)
        desk.files[index] = desk.selected = dialog.text
        desk.renamed[dialog.text] = first


def _drop(desk: Desk, widget: Widget | None) -> bool:
    held, desk.held = desk.held, None
    if desk.program is not None or held not in desk.documents or not widget or widget.name != TRASH:
        return False
    index = desk.documents.index(held)
    del desk.cells[len(desk.icons) + index]
    desk.trash.append(desk.documents.pop(index))
    return True


def _scroll(desk: Desk, pixels: int) -> bool:
    if desk.program != "Files" or desk.dialog:
        return False
    desk.page = min(max(0, (len(desk.files) - 1) // PAGE), 1) if pixels < 0 else 0
    desk.seen |= {desk.page}
    return True


def _type(desk: Desk, text: str) -> bool:
    dialog = desk.dialog
    if dialog and dialog.kind == "rename" and dialog.focused:
        dialog.text = (("" if dialog.replaces else dialog.text) + text)[:MAX_TYPED]
        dialog.replaces = False
    elif not dialog and desk.program == "Form" and desk.focus:
        desk.typed[desk.focus] = (("" if desk.replaces else desk.typed[desk.focus]) + text)[:MAX_TYPED]
        desk.replaces, desk.sent = False, None
    else:
        return False
    return True


def _press(desk: Desk, key: str) -> bool:
    if key == "enter" and desk.dialog:
        return _push(desk, OK)
    if key == "escape" and (desk.dialog or desk.menu):
        desk.menu = None
        return _push(desk, CANCEL) if desk.dialog else True
    if key == "delete" and desk.program == "Files" and desk.selected and not desk.dialog:
        return _push(desk, "Delete")
    return False
