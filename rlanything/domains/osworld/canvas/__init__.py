"""A drawn desktop: a few programs of 192 x 160 pixels in plain Python, for learning to act on screens on a CPU.

`words` says what there is, `desk` holds the state, `layout` says where everything is on the screen, `drawing` draws
it, `acting` carries out actions. `goals` are what tasks ask for, `solver` is the shortest way there, `tasks` makes
desktops with tasks.
"""
