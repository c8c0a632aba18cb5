#!/bin/bash
# Runs inside a desktop's isolation, before the server: home folder, X server, session bus, window manager.
set -u
mkdir -p /tmp/.X11-unix "$XDG_RUNTIME_DIR"
chmod 1777 /tmp /tmp/.X11-unix
chmod 700 "$XDG_RUNTIME_DIR"
cp -rT /opt/home "$HOME" 2>/dev/null
cd "$HOME"
mkdir -p Desktop Documents Downloads Pictures Music Videos .config/openbox
for kind in DESKTOP:Desktop DOWNLOAD:Downloads DOCUMENTS:Documents PICTURES:Pictures VIDEOS:Videos MUSIC:Music; do
  echo "XDG_${kind%%:*}_DIR=\"\$HOME/${kind##*:}\""
done > .config/user-dirs.dirs
terminal='<keybind key="C-A-t"><action name="Execute"><command>gnome-terminal</command></action></keybind>'
sed "s#</keyboard>#$terminal</keyboard>#" /etc/xdg/openbox/rc.xml > .config/openbox/rc.xml
touch .Xauthority
xauth add :0 . "$(mcookie)"
Xvfb :0 -screen 0 "${SCREEN_WIDTH}x${SCREEN_HEIGHT}x24" -maxclients 2048 -nolisten tcp -ac -noreset > /tmp/xvfb.log 2>&1 &
for _ in $(seq 200); do [ -S /tmp/.X11-unix/X0 ] && break; sleep 0.05; done
xset q > /dev/null || { cat /tmp/xvfb.log >&2; exit 1; }
dbus-daemon --session --address="$DBUS_SESSION_BUS_ADDRESS" --fork
openbox > /tmp/openbox.log 2>&1 &
# Every GTK program asks for the bus of accessible objects before it shows a window. Asking once starts it, and waits for it:
# two launchers would otherwise race for its name while the first programs wait.
dbus-send --session --print-reply --dest=org.a11y.Bus /org/a11y/bus org.a11y.Bus.GetAddress > /tmp/at-spi.log 2>&1 ||
  { cat /tmp/at-spi.log >&2; exit 1; }
xsetroot -solid '#3a6ea5'
pcmanfm --desktop > /tmp/pcmanfm.log 2>&1 &
