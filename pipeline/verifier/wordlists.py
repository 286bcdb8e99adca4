"""The words that the bundled verifier's tasks are made of. Standard library only; imports nothing.

All words are plain lower-case ASCII without spaces (names are capitalised), so that a word is one or two tokens of the
verifier's own tokenizer and can be spelled letter by letter.
"""

from __future__ import annotations


def _words(text: str) -> list[str]:
    return text.split()


NAMES = _words(
    "Ada Amir Anna Boris Carla Chen Clara Dana David Elif Emma Farid Felix Fiona Grace Hana Hugo Ines Ivan Jana Jonas "
    "Julia Karim Lara Leo Lena Luca Mara Marco Maya Milan Mina Nadia Nils Nora Omar Otto Paula Pedro Petra Quinn Rosa "
    "Rafael Ruth Samir Sara Sven Tara Theo Tilda Umar Vera Victor Wanda Yuki Zara Zeno"
)

ANIMALS = _words(
    "ant badger bat bear beaver bee bison camel cat cow crab crow deer dog donkey dove duck eagle eel falcon fish fox "
    "frog goat goose hare hawk heron horse lion lizard llama mole monkey moose mouse otter owl panda parrot pig pony "
    "puffin rabbit raven robin salmon seal shark sheep snail snake spider squid swan tiger toad turtle whale wolf "
    "wren zebra"
)

FRUITS = _words(
    "apple apricot banana cherry coconut date fig grape guava kiwi lemon lime mango melon nectarine olive orange "
    "papaya peach pear plum pumpkin quince raisin"
)

THINGS = _words(
    "basket bell blanket book boot bottle box brush bucket button candle carpet chair clock coat coin cup curtain "
    "desk drum envelope feather flag flute fork glove guitar hammer hat jacket kettle key kite knife ladder lamp "
    "letter map marble mirror needle notebook paint paper pen pencil piano pillow pin plate ring rope ruler scarf "
    "shell shirt shoe shovel spoon stamp stone table tent ticket towel tray vase violin wagon whistle window wheel"
)

COUNTED = _words(
    "apple badge balloon bead book bottle brick button candle card coin cup egg feather flower key kite lemon letter "
    "marble mug nail orange pear pen pencil plum postcard ribbon ring sack seed shell spoon stamp sticker stone "
    "ticket tile token tulip"
)

PLACES = _words(
    "beach bridge castle cave city desert farm field forest garden harbour hill house island lake market meadow mill "
    "mountain museum park port river road school shop square station street tower town valley village yard"
)

COLOURS = _words("amber black blue brown copper cream gold green grey pink purple red silver teal violet white yellow")

ADJECTIVES = _words(
    "angry brave bright calm clever cold dark dry early empty famous fast gentle happy heavy honest hungry kind large "
    "lazy light little loud lucky narrow new noisy old patient plain proud quick quiet rare rich rough round sad "
    "sharp short shy silent slow small smooth soft strange strong sweet tall thin tired tiny warm wet wide wild wise "
    "young"
)

VERBS = _words(
    "builds buys carries catches chases cleans counts draws drops finds follows fixes greets guards helps hides holds "
    "hunts keeps lifts likes loses meets moves needs opens paints passes pulls pushes sees sells sends shows takes "
    "teaches throws trusts visits wants washes watches"
)

WEEKDAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")

MONTHS = {
    "January": 31,
    "March": 31,
    "April": 30,
    "May": 31,
    "June": 30,
    "July": 31,
    "August": 31,
    "September": 30,
    "October": 31,
    "November": 30,
    "December": 31,
}

WORDS = tuple(dict.fromkeys(ANIMALS + FRUITS + THINGS + PLACES + COLOURS + ADJECTIVES))
