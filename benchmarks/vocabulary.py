"""Text of no meaning with the statistics that a full-text index feels: a Zipf-like vocabulary of thousands of words.

Function words come first, then stems with their inflections, then a long tail of names. Chinese words are made of the
3,755 characters of GB 2312's first level, the common ones. Everything follows from the seed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import accumulate
from random import Random

LANGUAGES = ("en", "zh")

#: Words are drawn by two random bytes from a table of this many slots.
SLOTS = 1 << 16

_EN_FREQUENT = """
the of and to in a is that for it as was with be by on not he i this are or his from at which but have an had they you
were their one all we can her has there been if more when will would who so no she other its may these what them than
some him time into only do such my new about out also two any up first could our then most see me should after said
your very between made many over did those each just people being how same where much before through even must because
well still own while down under here such both since against during without however within upon often until less again
"""

_EN_STEMS = """
absorb access account adapt address adjust advance agent align amount analyse anchor answer appear apply archive
arrange arrive assemble assign attach attempt attend audit average balance band barrier basket batch beam bear begin
behave bench bind bloom board boil border borrow bottle bound branch bread bridge bright bring broad broker brush
bucket budget build bundle burden button cabin cable calm campaign candle capture carbon carry carve castle catch cause
centre chain chair chamber change channel chapter charge chart check cheese choose circle circuit citizen claim class
clean clear climate climb clock close cloud coast collect colour column combine comfort command comment commit common
compare compile complete compose concern condition confirm connect consider consist contain content contract control
convert copper copy corner correct cost cotton count couple course cover craft create crew cross crowd crystal culture
current curve custom cycle damage dance danger decade decide declare deep defend define degree delay deliver demand
depend derive describe desert design desk detail detect develop device differ digest direct discover discuss display
distance divide document double doubt draft draw dream drift drive drop dust duty early earn earth echo edge edit
effect effort elect element embed emerge employ enable encode energy engine enjoy ensure enter entry equal error escape
estimate evening event evolve examine example exceed exchange exist expand expect expert explain explore export express
extend extract fabric factor fail family farm fashion feature fence fibre field figure file fill filter final find
finger finish fish flag flame flash fleet float floor flow flower focus follow force forest forget form forward found
frame free freeze fresh friend front fruit fuel function future gallery garden gate gather general gentle glass global
govern grain grand grant graph grass gravel green ground group grow guard guess guide habit hammer handle harbour
harvest head health heart heat heavy height history hold hollow honest horizon host house human hunt image impact
import improve include income index industry inform inherit inject inspect install instance instruct intend interest
invent invest invite iron island issue join journal journey judge jump keen kernel kettle keyboard kind kitchen knife
label labour ladder lake lamp land language large laser launch layer lead leaf learn leather lecture legal length
lesson letter level library lift light limit linen link liquid list listen local locate lock logic long loop machine
magnet main manage manner manual margin mark market marry master match matter meadow meaning measure medium member
memory mention merge metal method middle migrate mill mind mineral minute mirror mission mix model modern moment
monitor month morning motion motor mountain mouth move multiply museum music narrow nation nature network night noise
normal note notice number object observe obtain occur ocean offer office open operate option orchard order organ origin
outline output oven owner oxygen pack page paint panel paper parallel parent park part pass path patient pattern pause
perform period permit person phase phone photograph phrase pick picture piece pilot pipe place plain plan planet plant
plate platform play pocket point policy pool port position post pour powder power practice predict prefer prepare
present press pretend prevent price print problem process produce profile program progress project promise protect
prove provide public publish pull pump purpose push quality quantity quarter query quest question queue quick quiet
quote radio rail rain raise random range rapid rate reach react read ready reason recall receive record recover reduce
refer reflect region register regular reject relate release rely remain remember remote remove render repair repeat
replace reply report request require research reserve resist resolve resource respond rest result retire retrieve
return reveal review reward rhythm rich ride ring rise risk river road robust rock role roof room root rope rotate
rough round route row rule run rural sail salt sample sand satisfy save scale scan scene schedule school science scope
score screen script search season second secret section secure seed select send sense sentence separate sequence series
serve session settle shadow shallow shape share sheet shelf shell shelter shift shine ship shop shore short shoulder
show signal silent silver simple sing single site size skill sleep slide slow small smoke smooth social soft soil solid
solve song sort sound source south space spare speak special spell spend spin spirit split spread spring square stable
staff stage stand standard star start state station stay steady steam steel step stick stock stone store storm story
strange stream street strength stretch string strong structure study style subject submit sugar suggest summer supply
support suppose surface surprise survey switch symbol system table talk target task taste teach team temper tend term
test text theory thick thin think thread threshold throw ticket timber title token tool topic touch tower town trace
track trade tradition train transfer transform travel treat tree trend trial triangle trust tunnel turn type union unit
update upper urban value valley vapour vector vehicle verify version vessel view village vision visit voice volume wait
walk wall wander warm wash waste watch water wave weak weather weave weight wheel white whole wide wild wind window
winter wire wish witness wonder wood word work world worry write yard year yellow yield young zone
"""

_SUFFIXES = ("", "s", "ed", "ing", "er", "ly", "ment")
_SYLLABLES = """
ba be bo bri ca ce cla co cra da del di do dra el en er fa fen fi flo ga gel gi gor ha hel hi ho il in ja jo ka kel ki
ko kra la len li lo lun ma mel mi mo na nel ni no or pa pel pi po qua ra ren ri ro sa sel shi so sta ta tel ti to tra
ul un va vel vi vo wa wen wi xa yo za zel zi
"""
_NAMES = 6_000
#: Numbers, and as many identifiers that are no words at all.
_CODES = 800
_CODE_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789-_./"

_ZH_FREQUENT = (
    "的一是了在不和有大这主中人上为们地个用工时要动国产以我到他会"
    "作来分生对于学下级就年阶义发成部民可出能方进同行面说种过命度"
)
_ZH_WORDS = 18_000
#: Combinations of two to five words that come again and again, as terms and turns of phrase do in real text.
_ZH_PHRASES = 18_000
#: How many of 100 distinct words have one, two, three, four characters.
_ZH_LENGTHS = (8, 62, 18, 12)


def _english(random: Random) -> list[str]:
    inflected = [_inflect(stem, suffix) for stem in _EN_STEMS.split() for suffix in _SUFFIXES]
    random.shuffle(inflected)
    syllables = _SYLLABLES.split()
    names = ["".join(random.choices(syllables, k=random.randint(2, 4))).capitalize() for _ in range(_NAMES)]
    numbers = [str(random.randrange(10 ** random.randint(1, 6))) for _ in range(_CODES)]
    codes = ["".join(random.choices(_CODE_CHARACTERS, k=random.randint(4, 9))) for _ in range(_CODES)]
    tail = names + numbers + codes
    random.shuffle(tail)
    return list(dict.fromkeys(_EN_FREQUENT.split() + inflected + tail))


def _inflect(stem: str, suffix: str) -> str:
    if stem.endswith("e") and suffix[:1] in ("e", "i"):
        return stem[:-1] + suffix
    return stem + suffix


def _chinese(random: Random) -> list[str]:
    common = [bytes((row, cell)).decode("gb2312") for row in range(0xB0, 0xD7) for cell in range(0xA1, 0xFF)]
    random.shuffle(common)
    characters = list(dict.fromkeys(list(_ZH_FREQUENT) + common))
    weights = list(accumulate(_zipf(len(characters))))
    lengths = random.choices((1, 2, 3, 4), _ZH_LENGTHS, k=_ZH_WORDS)
    words = ["".join(random.choices(characters, cum_weights=weights, k=length)) for length in lengths]
    # Single characters stand at every third of the first ranks, between words.
    for rank, character in enumerate(_ZH_FREQUENT):
        words.insert(3 * rank, character)
    table = _slots(list(dict.fromkeys(words)))
    for index in range(_ZH_PHRASES):
        phrase = "".join(random.choices(table, k=random.randint(2, 5)))
        words.insert(2 * index, phrase)
    return list(dict.fromkeys(words))


def _zipf(count: int) -> Iterator[float]:
    return (1 / (rank + 2.7) for rank in range(count))


class Writer:
    """Writes chunks of text in one language; the same seed gives the same chunks."""

    def __init__(self, language: str, random: Random) -> None:
        self._random = random
        self._chinese = language == "zh"
        words = _chinese(random) if self._chinese else _english(random)
        self._table = _slots(words)

    def chunk(self, characters: int) -> str:
        """Return a text of exactly that many characters, without line breaks."""
        parts: list[str] = []
        length = 0
        while length < characters:
            part = self._sentence()
            parts.append(part)
            length += len(part)
        text = "".join(parts)[:characters]
        return text[:-1] + "." if text.endswith(" ") else text

    def _sentence(self) -> str:
        count = 5 + self._random.getrandbits(4)
        table = self._table
        words = [table[slot] for slot in array("H", self._random.randbytes(2 * count))]
        if self._chinese:
            return "".join(words) + ("。" if count & 3 == 0 else "，")
        text = " ".join(words)
        return text[0].upper() + text[1:] + (". " if count & 3 else "; ")


def _slots(words: list[str]) -> list[str]:
    """Return a table of :data:`SLOTS` in which a word fills slots as its rank deserves, at least one."""
    weights = list(_zipf(len(words)))
    spare = (SLOTS - len(words)) / sum(weights)
    table = [word for word, weight in zip(words, weights, strict=True) for _ in range(1 + int(weight * spare))]
    # Rounding down leaves some slots; they go to the first words in turn.
    table.extend(words[index % len(words)] for index in range(SLOTS - len(table)))
    return table
