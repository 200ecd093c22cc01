"""Which passwords are refused: short ones, and those that everybody tries first."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

from accelerando.crowd.store.errors import ApiError

__all__ = ["SHORTEST", "check_password", "is_common"]

SHORTEST = 8

# The words that common passwords consist of; digits and signs around them do not help.
_TEXT = """
    password passwort passw pass pw welcome willkommen bienvenue admin administrator root user
    guest test testing tester login letmein changeme secret default master access qwerty qwertz
    azerty abc abcd asdf dragon monkey shadow sunshine princess football baseball basketball
    soccer hockey superman batman spiderman pokemon starwars michael jennifer jessica ashley
    jordan daniel thomas robert andrew joshua matthew charlie george harley hunter ranger buster
    tigger killer trustno iloveyou loveyou lovely love flower summer winter spring autumn sommer
    freedom whatever computer internet samsung google facebook linkedin adobe photoshop mustang
    ferrari porsche mercedes corvette yamaha chelsea arsenal liverpool barcelona juventus cheese
    cookie pepper ginger banana chocolate orange purple yellow silver golden diamond hannah
    maggie sophie amanda nicole michelle samantha elizabeth victoria alexander maria marina
    andrea martin anthony william joseph james john david richard patrick dennis jonathan
    christian benjamin nathan brandon austin taylor morgan dallas london paris berlin vienna
    america canada mexico brazil russia china india monday friday sunday january february march
    april june july august september october november december family friend friends mother
    father sister brother baby angel angels heaven jesus christ god lucky blessed forever happy
    smile peace hello hallo hola bonjour please thankyou matrix phoenix thunder lightning storm
    tiger lion eagle falcon wolf bear snoopy garfield mickey minnie disney merlin gandalf frodo
    hobbit wizard magic ninja samurai warrior killer666 blink metallica nirvana slipknot eminem
    guitar music player gamer minecraft fortnite roblox one zaq zxcvbn zxcvbnm qazwsx qweasd
    qweasdzxc asdfgh asdfghjkl qwertyuiop poiuytrewq mnbvcxz lakers yankees cowboys steelers
    packers raiders eagles redsox patriots money dollar business company office manager service
    support student teacher school college university research science experiment experimenter
    experiments participant accelerando crowd study survey server database system network
    security private public temp temporary backup demo example sample nothing something anything
    everything nobody somebody unknown blahblah fuckyou fuckoff asshole bitch pussy sexy sexsex
    hardcore playboy hottie beautiful gorgeous pretty sweet sweetie honey darling kitten kitty
    puppy doggy horse bubbles butterfly rainbow unicorn snowball snowman christmas halloween
    birthday summertime weekend holiday vacation
"""
_WORDS = frozenset(_TEXT.split())
_ROWS = ("01234567890123456789", "abcdefghijklmnopqrstuvwxyz", "qwertyuiop", "asdfghjkl", "zxcvbnm",
         "qwertzuiop", "yxcvbnm", "azertyuiop", "1qaz2wsx3edc4rfv5tgb", "1q2w3e4r5t6y7u8i9o0p",
         "qazwsxedcrfvtgb", "!@#$%^&*()", "a1b2c3d4e5f6g7h8", "0987654321098765")  # fmt: skip
_LEET = str.maketrans("@4301!$5+7", "aaeoiisstt")


def is_common(password: str) -> bool:
    """Return True if a password is among those that everybody tries first.

    Examples
    --------
    >>> [is_common(one) for one in ("P@ssw0rd2024!", "12345678", "qwertzuiop", "aaaaaaaa")]
    [True, True, True, True]
    >>> is_common("tin whistle, left pocket")
    False
    """
    low = password.lower()
    if hashlib.sha256(low.encode("utf-8", "replace")).hexdigest()[:10] in _leaked():
        return True
    if len(set(low)) <= 2 or _is_repeated(low) or _is_row(low):
        return True
    digits_away = re.sub(r"^[\W\d_]+|[\W\d_]+$", "", low)
    for form in {low, digits_away, low.translate(_LEET), digits_away.translate(_LEET)}:
        letters = re.sub(r"[\W\d_]+", "", form)
        halves = {letters, letters[: len(letters) // 2]} if _is_repeated(letters) else {letters}
        if not letters or not _WORDS.isdisjoint(halves) or (len(form) < 20 and _is_row(letters)):
            return True
    return False


@cache
def _leaked() -> frozenset[str]:
    """Return digests of the most common passwords in public lists."""
    text = (Path(__file__).parent / "common_passwords.txt").read_text()
    return frozenset(
        digest for line in text.split("\n") if not line.startswith("#") for digest in line.split()
    )


def _is_repeated(text: str) -> bool:
    return any(
        len(text) % size == 0 and text == text[:size] * (len(text) // size)
        for size in range(1, len(text) // 2 + 1)
    )


def _is_row(text: str) -> bool:
    """Return True for neighbors on the keyboard or in the alphabet, forwards or backwards."""
    return any(text in row or text in row[::-1] for row in _ROWS) if text else False


def check_password(password: str, *names: str) -> None:
    """Raise ApiError (422) unless a password may be used.

    Parameters
    ----------
    password : str
        The new password.
    *names : str
        Words that it must not consist of, such as the name of the account.
    """
    if len(password) < SHORTEST:
        raise ApiError("password", f"The password must have at least {SHORTEST} characters.", 422)
    if len(password) > 1000:
        raise ApiError("password", "The password must have at most 1,000 characters.", 422)
    core = re.sub(r"[\W\d_]+", "", password.lower())
    if is_common(password) or core in {re.sub(r"[\W\d_]+", "", name.lower()) for name in names}:
        raise ApiError(
            "password",
            "This password is one of those that are tried first. Use several words, or a password "
            "manager.",
            422,
        )
