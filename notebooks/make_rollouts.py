"""Plays a text game with scripted agents and writes what they did to `rollouts.jsonl`, the log of `llm_credit.py`.

A crown lies in one of six chests, and the agent must answer with the chest's colour. It walks through four rooms and
uses tools: `look`, `go ROOM`, `open THING`, `take key`, `ask cook`, `answer COLOUR`. The ledger in the cellar names the
chest, but the cellar is locked, and the key lies in the jar or in the desk. The book in the library rules two chests
out, and the cook is right three times in four. A command that does not work costs 0.05; the right answer pays 1.

Each line is one rollout: `prompt_id`, `prompt`, `agent`, `gold` (the colour), `outcome` (1 for the right answer),
`turns` and `gold_log_probs`. The last of the turns is the answer, unless the limit of turns came first. A turn has

- `state`: what RTMC compares rollouts by (room, key, what is known), and `command`, what was done there;
- `action` and `observation`: the text of the policy and that of the game, and their `tokens`, split at white space;
- `reward`, and `value`: the chance that the best guess before the turn is right.

`gold_log_probs` are the log-probabilities of the right colour before each turn other than the answer, and behind the
last of these. They and `value` come from a belief over the chests, which Bayes' rule updates with every clue.
"""

import argparse
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COLOURS = ("red", "blue", "green", "gold", "black", "white")
EXITS = {
    "hall": ("kitchen", "library", "cellar"),
    "kitchen": ("hall", "library"),
    "library": ("hall", "kitchen"),
    "cellar": ("hall",),
}
THINGS = {"hall": (), "kitchen": ("cook", "jar"), "library": ("book", "desk"), "cellar": ("ledger",)}
ROOM_OF = {thing: room for room, things in THINGS.items() for thing in things}
COMMANDS = (
    "look",
    *(f"go {room}" for room in EXITS),
    *(f"open {thing}" for thing in ("jar", "book", "desk", "ledger")),
    "take key",
    "ask cook",
)
AGENTS = ("planner", "reader", "asker", "wanderer")
SLIPS = {"planner": 0.1, "reader": 0.15, "asker": 0.15, "wanderer": 1.0}  # chance of a random command
PROMPTS, ROLLOUTS_PER_AGENT, TURN_LIMIT = 5, 2, 12
COOK_IS_RIGHT = 0.75
PROMPT = "The crown lies in one of six chests : {} . Find out which one , and answer with its colour ."
THOUGHTS = {
    "look": "What is there to see in this room ?",
    "go": "The {thing} may have more to tell .",
    "open": "Let me see what is in the {thing} .",
    "take": "This must open the cellar .",
    "ask": "The {thing} may know , but may be wrong .",
    "answer": "I am {percent} % sure .",
}


def pick(rng: random.Random, options: Sequence[str]) -> str:
    # random() is the one method whose sequence Python promises never to change.
    return options[int(rng.random() * len(options))]


class World:
    """Where things lie, and what each clue says: one for each prompt."""

    def __init__(self, prompt_id: int) -> None:
        rng = random.Random(f"world {prompt_id}")
        self.gold = pick(rng, COLOURS)
        wrong = [c for c in COLOURS if c != self.gold]
        self.key_in = pick(rng, ("jar", "desk"))
        self.cook_says = self.gold if rng.random() < COOK_IS_RIGHT else pick(rng, wrong)
        first = pick(rng, wrong)
        self.book_rules_out = (first, pick(rng, [c for c in wrong if c != first]))


class Game:
    """One rollout: where the agent is, what it has and what it knows."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.room, self.key, self.clues, self.opened = "hall", "unseen", set[str](), set[str]()
        self.looked = False
        self.belief = {c: 1 / len(COLOURS) for c in COLOURS}

    def state(self) -> str:
        return " ".join([self.room, f"key-{self.key}", *sorted(self.clues | self.opened)])

    def learn(self, clue: str, likelihood: dict[str, float]) -> None:
        """Bayes' rule; a clue that is heard again is no news."""
        if clue not in self.clues:
            self.clues.add(clue)
            joint = {c: p * likelihood[c] for c, p in self.belief.items()}
            self.belief = {c: p / sum(joint.values()) for c, p in joint.items()}

    def act(self, command: str) -> tuple[str, float]:
        """What the game says, and the reward."""
        verb, _, thing = command.partition(" ")
        world = self.world
        if verb == "look":
            self.looked = True
            seen = ", ".join(THINGS[self.room]).replace(",", " ,") or "nothing"
            return f"You are in the {self.room} and see : {seen} . Exits : {' , '.join(EXITS[self.room])} .", 0.0
        if verb == "go" and thing in EXITS[self.room]:
            if thing == "cellar" and self.key != "held":
                return "The cellar is locked .", -0.05
            self.room = thing
            return f"You are in the {thing} .", 0.0
        if verb == "ask" and self.room == "kitchen":
            other = (1 - COOK_IS_RIGHT) / (len(COLOURS) - 1)
            self.learn("cook", {c: COOK_IS_RIGHT if c == world.cook_says else other for c in COLOURS})
            return f'The cook says : " I believe it is the {world.cook_says} one . "', 0.0
        if verb == "open" and ROOM_OF[thing] == self.room:
            return self.open(thing), 0.0
        if verb == "take" and self.key == "seen" and self.room == ROOM_OF[world.key_in]:
            self.key = "held"
            return "You have the key .", 0.0
        return "That does not work here .", -0.05

    def open(self, thing: str) -> str:
        world = self.world
        if thing == "book":
            self.learn("book", {c: float(c not in world.book_rules_out) for c in COLOURS})
            return "The book says : the crown was never in the {} or the {} chest .".format(*world.book_rules_out)
        if thing == "ledger":
            self.learn("ledger", {c: float(c == world.gold) for c in COLOURS})
            return f"The ledger says : the crown , one piece , in the {world.gold} chest ."
        self.opened.add(thing)
        if thing == world.key_in and self.key != "held":
            self.key = "seen"
            return f"There is a key in the {thing} ."
        return f"The {thing} is empty ."


def towards(game: Game, room: str, command: str) -> str:
    """The command, once the agent is in the room."""
    if game.room == room:
        return command
    return f"go {room}" if room in EXITS[game.room] else "go hall"


def plan(agent: str, game: Game) -> str | None:
    """What the agent does if it does not slip; None to answer."""
    wanted = {"planner": ("ledger",), "reader": ("book", "cook"), "asker": ("cook",), "wanderer": ()}[agent]
    missing = [clue for clue in wanted if clue not in game.clues]
    if not missing:
        return None
    if missing[0] != "ledger":
        return towards(game, ROOM_OF[missing[0]], "ask cook" if missing[0] == "cook" else f"open {missing[0]}")
    if not game.looked:
        return "look"
    if game.key == "held":
        return towards(game, "cellar", "open ledger")
    if game.key == "seen":
        return towards(game, ROOM_OF[game.world.key_in], "take key")
    closed = [thing for thing in ("jar", "desk") if thing not in game.opened]
    return towards(game, ROOM_OF[closed[0]], f"open {closed[0]}")


def choose(agent: str, game: Game, rng: random.Random) -> str:
    command = plan(agent, game)
    if rng.random() < SLIPS[agent] and not (agent == "wanderer" and rng.random() < 0.12):
        command = pick(rng, COMMANDS)
    if command is not None:
        return command
    best = max(game.belief.values())
    return "answer " + pick(rng, [c for c, p in game.belief.items() if p > best - 1e-9])


def play(prompt_id: int, agent: str, number: int) -> dict[str, Any]:
    world = World(prompt_id)
    game, rng = Game(world), random.Random(f"rollout {prompt_id} {agent} {number}")
    turns: list[dict[str, Any]] = []
    gold_log_probs = []
    outcome, answered = 0.0, False
    while not answered and len(turns) < TURN_LIMIT:
        state, value = game.state(), max(game.belief.values())
        # Rounded, so that the last bit of a platform's logarithm does not change the file.
        gold_log_probs.append(round(math.log(game.belief[world.gold]), 6) + 0.0)
        command = choose(agent, game, rng)
        verb, _, thing = command.partition(" ")
        answered = verb == "answer"
        if answered:
            outcome = float(thing == world.gold)
            observation, reward = "", outcome
        else:
            observation, reward = game.act(command)
        thought = THOUGHTS[verb].format(thing=thing, percent=round(100 * value))
        action = f"> {command}" if agent == "wanderer" else f"{thought} > {command}"
        turns.append(
            {
                "state": state,
                "command": command,
                "action": action,
                "observation": observation,
                "tokens": [len(action.split()), len(observation.split())],
                "reward": reward,
                "value": round(value, 6),
            }
        )
    if not answered:
        gold_log_probs.append(round(math.log(game.belief[world.gold]), 6) + 0.0)
    return {
        "prompt_id": prompt_id,
        "prompt": PROMPT.format(" , ".join(COLOURS)),
        "agent": agent,
        "gold": world.gold,
        "outcome": outcome,
        "gold_log_probs": gold_log_probs,
        "turns": turns,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Plays the game and writes the log.")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("rollouts.jsonl"))
    output = parser.parse_args().output
    lines = [
        json.dumps(play(prompt_id, agent, number))
        for prompt_id in range(PROMPTS)
        for agent in AGENTS
        for number in range(ROLLOUTS_PER_AGENT)
    ]
    output.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    print(f"{len(lines)} rollouts in {output}")


if __name__ == "__main__":
    main()
