"""Scripted solutions of tasks of OSWorld that run offline on Debian's packages, by the beginning of their id.

The last step of each is the one that counts: without it the task is not solved.
"""

from __future__ import annotations

from rlanything.domains.osworld.actions import Action

VLCRC = "~/.config/vlc/vlcrc"
CHROME = "~/.config/google-chrome/Default"
GIMP = "~/.config/GIMP/2.10"


def wait(seconds: float) -> Action:
    return Action(kind="wait", time=seconds)


def press(*keys: str) -> Action:
    return Action(kind="key", keys=keys)


def typed(text: str) -> Action:
    return Action(kind="type", text=text)


def shell(command: str, seconds: float = 2.0) -> list[Action]:
    """Open a terminal, and run a command in it."""
    return [press("ctrl", "alt", "t"), wait(3), typed(f"{command}\n"), *([wait(seconds)] if seconds else [])]


def vlc(key: str, value: str) -> list[Action]:
    return shell(f"pkill vlc; sleep 2; sed -i 's|^#\\?{key}=.*|{key}={value}|' {VLCRC}", 4)


def chrome(change: str) -> list[Action]:
    edit = f"jq '{change}' Preferences > changed && mv changed Preferences"
    return [wait(3), *shell(f"pkill chrome; sleep 2; cd {CHROME} && {edit}", 4)]


FAVORITES = (
    '{"checksum":"","roots":{"bookmark_bar":{"children":[{"children":[],"date_added":"1","id":"4","name":"Favorites",'
    '"type":"folder"}],"id":"1","name":"Bookmarks bar","type":"folder"},"other":{"children":[],"id":"2","name":'
    '"Other","type":"folder"},"synced":{"children":[],"id":"3","name":"Mobile","type":"folder"}},"version":1}'
)
FAVORITE_PROGRAMS = "['thunderbird.desktop', 'google-chrome.desktop']"
PROFILE = (
    'P=$(gsettings get org.gnome.Terminal.ProfilesList default | tr -d "\'"); '
    "K=org.gnome.Terminal.Legacy.Profile:/org/gnome/terminal/legacy/profiles:/:$P/; "
    "gsettings set $K default-size-columns 132; gsettings set $K default-size-rows 43; exit"
)
AUTOSAVE = (
    '<item oor:path="/org.openoffice.Office.Recovery/AutoSave"><prop oor:name="{}" oor:op="fuse"><value>{}</value>'
    "</prop></item>"
)

SOLUTIONS: dict[str, list[Action]] = {
    "e0df059f": shell("mv ~/Desktop/todo_list_Jan_1 ~/Desktop/todo_list_Jan_2"),
    "f9be0997": shell("gsettings set org.gnome.desktop.notifications show-banners false"),
    "bedcedc4": shell("gsettings set org.gnome.desktop.session idle-delay 0"),
    "a4d98375": shell("gsettings set org.gnome.desktop.screensaver lock-enabled true"),
    "3ce045a0": shell("gsettings set org.gnome.desktop.interface text-scaling-factor 1.5"),
    "ec4e3f68": shell(
        "gsettings set org.gnome.shell favorite-apps \"['thunderbird.desktop', 'google-chrome.desktop']\""
    ),
    "13584542": shell(PROFILE, 3),
    "2373b66a": [*shell("sar 1 30 > ~/Desktop/System_Resources_Report.txt", 10), wait(10), wait(10), wait(3)],
    "7b7617bd": [wait(8), *shell(f"echo '(undo-levels 100)' >> {GIMP}/gimprc")],
    "7767eef2": [wait(8), *shell(f"echo '(theme \"Light\")' >> {GIMP}/gimprc")],
    "d52d6308": [wait(8), Action(kind="left_click", coordinate=(500, 600)), press("tab"), wait(2)],
    "8ba5ae7a": vlc("input-record-path", "/home/user/Desktop"),
    "9195653c": vlc("qt-max-volume", "200"),
    "d06f0d4d": vlc("qt-slider-colours", "0;0;0;10;10;10;20;20;20;30;30;30"),
    "a5bbbcd5": vlc("qt-minimal-view", "1"),
    "f3977615": vlc("one-instance-when-started-from-file", "0"),
    "215dfd39": vlc("qt-bgcone", "0"),
    "030eeff7": chrome(".enable_do_not_track=true"),
    "9656a811": chrome(".safebrowsing.enabled=true"),
    "3299584d": chrome(".session.restore_on_startup=5"),
    "af630914": chrome(".webkit.webprefs.default_font_size=24"),
    "2ae9ba84": chrome('.profile.name="Thomas"'),
    "2ad9387a": [wait(3), *shell(f"pkill chrome; sleep 2; echo '{FAVORITES}' > {CHROME}/Bookmarks", 3)],
}
