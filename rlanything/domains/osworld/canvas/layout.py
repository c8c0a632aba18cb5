"""The layout of a drawn desktop: every widget with its place on the screen."""

from rlanything.domains.osworld.canvas import words
from rlanything.domains.osworld.canvas.desk import PAGE, Desk, Kind, Widget
from rlanything.domains.osworld.canvas.words import CANCEL, NEW_NAME, OK

NOTCH = 16  # pixels between two numbers of a slider
FILE_NAME = -54  # from the centre of a file's row to its name
LABEL_X = 6  # where the name of a control or a field begins, before its shift


def on_top(desk: Desk) -> list[Widget]:
    """The widgets that can be clicked now. A dialog or a list that is folded out hides the others."""
    if desk.busy:
        return []
    if desk.dialog:
        return _dialog(desk)
    if desk.menu:
        dx, dy = desk.look.offsets[10]
        return [
            Widget(Kind.ITEM, choice, 140 + dx, 80 + 30 * k + dy, 64, 24)
            for k, choice in enumerate(words.CHOICES[desk.menu])
        ]
    return below(desk)


def below(desk: Desk) -> list[Widget]:
    """The widgets below dialogs and folded-out lists."""
    if desk.program is None:
        return _icons(desk)
    dx, dy = desk.look.offsets[0]
    close = Widget(Kind.CLOSE, words.CLOSE, 178 + dx // 2, 12 + dy // 2, 18, 16)
    return [close, *{"Settings": _settings, "Files": _files, "Form": _form}.get(desk.program, _nothing)(desk)]


def label_x(widget: Widget) -> int:
    """The pixel column in which the name beside a control begins, or that of a file. It shifts with the widget."""
    if widget.kind is Kind.FILE:
        return widget.x + FILE_NAME
    unshifted = {Kind.SWITCH: 150, Kind.CHECK: 150, Kind.SLIDER: 136, Kind.LESS: 112, Kind.LIST: 140, Kind.FIELD: 124}
    return LABEL_X + widget.x - unshifted[widget.kind]


def _icons(desk: Desk) -> list[Widget]:
    widgets = []
    for k, (name, cell) in enumerate(zip([*desk.icons, *desk.documents], desk.cells, strict=True)):
        dx, dy = desk.look.offsets[k]
        kind = Kind.ICON if k < len(desk.icons) else Kind.DOCUMENT
        widgets.append(Widget(kind, name, 32 + 64 * (cell % 3) + dx, 24 + 52 * (cell // 3) + dy, 40, 38))
    return widgets


def _settings(desk: Desk) -> list[Widget]:
    offsets = desk.look.offsets
    widgets = [
        Widget(Kind.TAB, tab, 32 + 64 * k + offsets[1 + k][0] // 2, 48 + offsets[1][1], 60, 20)
        for k, tab in enumerate(desk.tab_order)
    ]
    for k, name in enumerate(desk.tabs[desk.tab]):
        dx, y = offsets[4 + k][0], 80 + 32 * k + offsets[4 + k][1]
        if name in words.SWITCHES:
            widgets.append(Widget(Kind.SWITCH, name, 150 + dx, y, 30, 16))
        elif name in words.CHECKS:
            widgets.append(Widget(Kind.CHECK, name, 150 + dx, y, 16, 16))
        elif name in words.SLIDERS:
            widgets.append(Widget(Kind.SLIDER, name, 136 + dx, y, 96, 16))
        elif name in words.SPINNERS:
            widgets.append(Widget(Kind.LESS, f"{name} -", 112 + dx, y, 18, 18))
            widgets.append(Widget(Kind.MORE, f"{name} +", 164 + dx, y, 18, 18))
        elif name == words.THEME:
            choices = enumerate(words.CHOICES[name])
            widgets += [Widget(Kind.OPTION, choice, 90 + 58 * i + dx, y, 48, 16) for i, choice in choices]
        else:
            widgets.append(Widget(Kind.LIST, name, 140 + dx, y, 64, 18))
    return widgets


def _files(desk: Desk) -> list[Widget]:
    offsets = desk.look.offsets
    buttons = [
        Widget(Kind.BUTTON, name, 32 + 64 * k + offsets[1 + k][0] // 2, 48 + offsets[1][1], 54, 18)
        for k, name in enumerate(desk.toolbar)
    ]
    shown = desk.files[PAGE * desk.page : PAGE * (desk.page + 1)]
    rows = [
        Widget(Kind.FILE, name, 80 + offsets[4 + k][0], 80 + 32 * k + offsets[4 + k][1], 150, 20)
        for k, name in enumerate(shown)
    ]
    return [*buttons, *rows]


def _form(desk: Desk) -> list[Widget]:
    offsets = desk.look.offsets
    fields = [
        Widget(Kind.FIELD, name, 124 + offsets[4 + k][0], 52 + 36 * k + offsets[4 + k][1], 100, 18)
        for k, name in enumerate(desk.fields)
    ]
    buttons = [
        Widget(Kind.BUTTON, name, 52 + 88 * k + offsets[8 + k][0], 140 + offsets[8][1], 54, 18)
        for k, name in enumerate(_answers(desk))
    ]
    return [*fields, *buttons]


def _dialog(desk: Desk) -> list[Widget]:
    assert desk.dialog
    dx, dy = desk.look.offsets[11]
    buttons = [Widget(Kind.BUTTON, name, 56 + 80 * k + dx, 116 + dy, 54, 18) for k, name in enumerate(_answers(desk))]
    if desk.dialog.kind == "notice":
        return [button for button in buttons if button.name == OK]
    if desk.dialog.kind == "delete":
        return buttons
    dx, dy = desk.look.offsets[12]
    return [*buttons, Widget(Kind.FIELD, NEW_NAME, 96 + dx, 84 + dy, 120, 18)]


def _answers(desk: Desk) -> tuple[str, str]:
    return (CANCEL, OK) if desk.look.flipped else (OK, CANCEL)


def _nothing(desk: Desk) -> list[Widget]:
    return []


def slider_start(widget: Widget) -> int:
    """The pixel column of a slider's 0."""
    return widget.x - NOTCH * words.TOP // 2
