"""Makes the golden home folder, which every local desktop begins with: programs have been run once and left cleanly.

scripts/osworld_desktop.sh runs this module with a folder, which holds `site` and gets `home`. Without it GIMP scans its
plug-ins and VLC asks for privacy at every start, and evaluators find no settings.
"""

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rlanything.domains.osworld.desktops import isolation
from rlanything.domains.osworld.desktops.client import DesktopFault, Guest
from rlanything.domains.osworld.desktops.local import LocalDesktop, LocalSettings

START_S = 180.0  # the first start of GIMP scans its plug-ins
QUIET_S = 4.0  # after a window appears: the program still writes its settings
PROGRAMS = (  # (folder of settings, starts: command, a part of its window's title, keys that end it or "" to close it)
    (".config/google-chrome", ((["google-chrome", "about:blank"], "Chromium", ""),)),
    (
        ".config/libreoffice",
        (
            (["localc", "--norestore"], "LibreOffice Calc", "ctrl+q"),
            (["lowriter", "--norestore"], "LibreOffice Writer", "ctrl+q"),
        ),
    ),
    (".config/GIMP", ((["gimp"], "GNU Image Manipulation Program", "ctrl+q"),)),
    (".config/vlc", ()),
)
VLC = (  # it writes its settings without a window
    "cvlc --reset-config vlc://quit; sed -i 's/^#\\?qt-privacy-ask=.*/qt-privacy-ask=0/; "
    "s/^#\\?metadata-network-access=.*/metadata-network-access=0/' ~/.config/vlc/vlcrc"
)
TIDY = (  # caches and locks stay behind: a lock makes a program believe that it runs
    "cd ~/.config && rm -rf google-chrome/Singleton* google-chrome/*Cache* google-chrome/*/*Cache* "
    "google-chrome/component_crx_cache; find . -name '.~lock*' -delete"
)


async def make(folder: Path) -> None:
    """Make `folder/home`. Raises DesktopFault if a program does not start or does not end."""
    target, part = folder / "home", folder / "home.part"
    shutil.rmtree(part, ignore_errors=True)
    await asyncio.gather(*(_settings(folder, part, *program) for program in PROGRAMS))
    shutil.rmtree(target, ignore_errors=True)
    part.rename(target)


async def _settings(folder: Path, part: Path, held: str, starts: Sequence[tuple[list[str], str, str]]) -> None:
    """Put the settings that a program writes into `part`. Each program has a desktop of its own."""
    desktop = LocalDesktop(LocalSettings(site=folder / "site", home=isolation.GUEST / "home"))
    try:
        await desktop.boot()
        await desktop.connect()
        for command, title, keys in starts:
            print(f"golden home: {command[0]}", flush=True)
            await _run_once(desktop.guest, command, title, keys)
        await desktop.guest.execute(VLC if held.endswith("vlc") else TIDY, shell=True)
        packed = await desktop.guest.execute(f"cd ~ && tar -cf /tmp/home.tar {held}", shell=True)
        content = await desktop.guest.download("/tmp/home.tar")
        if packed.returncode or content is None:
            raise DesktopFault(f"{held} could not be packed: {packed.error}")
    finally:
        await desktop.close()
    part.mkdir(exist_ok=True)
    # Python's tarfile has no safe filter before 3.11.4, and Debian has 3.11.2. GNU tar strips / and refuses .. itself.
    command = ["tar", "-x", "--no-same-owner", "--no-same-permissions", "-C", str(part)]
    unpacked = subprocess.run(command, input=content, capture_output=True, check=False)
    if unpacked.returncode:
        raise DesktopFault(f"{held} could not be unpacked: {unpacked.stderr.decode(errors='replace')}")


async def _run_once(guest: Guest, command: list[str], title: str, keys: str) -> None:
    await guest.launch(command)
    await _until(guest, title, there=True)
    await asyncio.sleep(QUIET_S)
    await guest.screenshot(QUIET_S)
    if keys:
        await guest.execute(["xdotool", "key", keys])
    else:
        await guest.window("close", title)
    await _until(guest, title, there=False)
    await asyncio.sleep(QUIET_S)


async def _until(guest: Guest, title: str, there: bool) -> None:
    until = time.monotonic() + START_S
    while (title in (await guest.execute(["wmctrl", "-l"])).output) is not there:
        if time.monotonic() > until:
            raise DesktopFault(f"{title}: its window did not {'appear' if there else 'go'} within {START_S:.0f} s")
        await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1]).resolve()))
