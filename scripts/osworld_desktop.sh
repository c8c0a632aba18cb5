#!/usr/bin/env bash
# Install what real desktops need: Debian packages (as root or with sudo), Python packages of the guest, a golden home.
# usage: scripts/osworld_desktop.sh [FOLDER]    (by default data/osworld/desktop). Idempotent; about two minutes, 1.5 GB.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-data/osworld/desktop}
mapfile -t packages < rlanything/domains/osworld/desktops/packages.txt
missing=()
for package in "${packages[@]}"; do
  dpkg -s "$package" 2> /dev/null | grep -q "^Status: install ok installed" || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  root=""
  [ "$(id -u)" = 0 ] || root=sudo
  if ! command -v apt-get > /dev/null || { [ -n "$root" ] && ! command -v sudo > /dev/null; }; then
    echo "error: these Debian packages are missing, and this user cannot install them: ${missing[*]}" >&2
    exit 1
  fi
  echo "desktop: installing ${#missing[@]} Debian packages"
  $root env DEBIAN_FRONTEND=noninteractive dpkg --configure -a > /dev/null  # what an interrupted installation left
  $root apt-get update -qq
  $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
fi
mkdir -p "$folder"
pinned="pyautogui==0.9.54 mouseinfo==0.1.3 pymsgbox==2.0.1 pytweening==1.2.0 pyscreeze==1.0.1 pyperclip==1.11.0"
if [ "$(cat "$folder/site/.installed" 2> /dev/null)" != "$pinned" ]; then
  echo "desktop: installing the guest's Python packages"
  rm -rf "$folder/site"
  # Without dependencies: pyautogui asks for python3-xlib 0.15, which overwrites Debian's python-xlib 0.33.
  .venv/bin/python -m pip --disable-pip-version-check install -q --no-deps --target "$folder/site" $pinned
  echo "$pinned" > "$folder/site/.installed"
fi
[ -d "$folder/home" ] || .venv/bin/python -m rlanything.domains.osworld.desktops.golden "$folder"
echo "desktop: ready in $folder"
