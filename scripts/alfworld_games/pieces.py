"""Regular expressions for the parts of ALFWorld's texts that a small tokenizer keeps whole."""

NAME = "[a-z]+ [0-9]+"  # of an object or a receptacle
TOPIC = "[a-z]+:"  # the beginning of a demonstrated thought: the object that it is about
# If one piece begins another, the longer one comes first.
PIECES = [
    # Commands.
    r" ?\\boxed\{(?:1\}|-1\})?", r"\n> ", "go to ", "take ", " from (?:the )?", "move ", " to (?:the )?", " with ",
    "open ", "use ", "examine ",
    # Fixed parts of the room's answers.
    "You arrive at ", " ?On the ", " ?The ", r" is closed\.", r" is open\. In it, you see (?:a )?",
    ", you see (?:a )?", ", and a ", ", a ", "You open the ", "You close the ", "You pick up the ", "You move the ",
    r"You are in the middle of a room\. Looking quickly around you, you see (?:a )?", "Your task is to: ",
    r"\nHere: ", "; ", r"Nothing happens\.", "You are facing the ", " ?Next to it, you see (?:a )?",
    "You are carrying: a ", r"You are not carrying anything\.", r"nothing\.", "There's nothing special about ",
    "You turn on the ", "You (?:heat|cool|clean) the ", " using the ",
    # The judge's question and reasons.
    r"Judge the last step\.", "closer to the goal", "looks at a new place", "does nothing", "no progress",
    "seen before", "undoes progress", "makes the task impossible",
    # Names.
    NAME, f" (?={NAME})", TOPIC,
]  # fmt: skip
