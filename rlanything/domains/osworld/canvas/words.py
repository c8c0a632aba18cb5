"""The words of drawn desktops: programs, controls of Settings, files, fields, and texts to type."""

from collections.abc import Mapping, Sequence

PROGRAMS = ("Settings", "Files", "Form")
DECORATIONS = ("Music", "Web", "Mail", "Maps", "Chat", "Clock")  # icons that do nothing
TRASH = "Trash"
TABS: Mapping[str, Sequence[str]] = {
    "Network": ("Wi-Fi", "Bluetooth", "VPN", "Hotspot", "Roaming"),
    "Sound": ("Volume", "Mute", "Bass", "Alarm"),
    "Display": ("Brightness", "Theme", "Size", "Zoom"),
}
TAB_OF = {control: tab for tab, controls in TABS.items() for control in controls}
SWITCHES = ("Wi-Fi", "Bluetooth", "VPN", "Hotspot", "Roaming")
CHECKS = ("Mute", "Alarm")
SLIDERS = ("Volume", "Bass")
SPINNERS = ("Brightness", "Zoom")
THEME, SIZE = "Theme", "Size"  # radio buttons, a drop-down list
CHOICES: Mapping[str, Sequence[str]] = {THEME: ("Light", "Dark"), SIZE: ("Small", "Medium", "Large")}
TOP = 5  # the largest number of a slider or a spinner
FILES = (
    "notes", "report", "budget", "photo", "letter", "music", "plan", "draft", "invoice", "backup", "todo", "recipe",
    "essay", "poem", "data", "script",
)  # fmt: skip
FIELDS = ("Code", "Name", "City", "User", "Phone")
NUMBERED = ("Code", "Phone")  # fields that take digits
TYPED = ("anna", "berlin", "carlos", "delhi", "emma", "frank", "geneva", "hugo", "iris", "jonas")
NEW_NAME = "New name"  # the field of the dialog that renames a file
OK, CANCEL, CLOSE = "OK", "Cancel", "Close"
TOOLS = ("Open", "Rename", "Delete")  # buttons of Files
# Words that no training task asks for: they only stand on the screens. Evaluation out of distribution asks for them.
HELD_OUT = frozenset(
    ("Roaming", "Hotspot", "Alarm", "Zoom", "poem", "data", "script", "essay", "User", "iris", "jonas")
)
