"""Words of queries about products: attributes, a change of colour, and instructions, each in many wordings.

What is drawn comes from a seed and the name of what is asked, so that wordings do not depend on one another.
"""

from __future__ import annotations

from random import Random

INSTRUCTIONS: dict[str, tuple[str, ...]] = {
    "t2i": (
        "Find a photograph of this product.",
        "Which picture shows the product of this name?",
        "Show me how this product looks.",
    ),
    "i2t": (
        "Find the name of this product.",
        "What is the product in the picture called?",
        "Which product name fits this photograph?",
    ),
    "t2t": (
        "Find the name of a product like this.",
        "Which product names fit this description?",
        "Name a product of this kind.",
    ),
    "i2i": (
        "Find another photograph of this product.",
        "Which picture shows a product of the same name?",
        "Show me more pictures of this.",
    ),
    "t2it": (
        "Find a product like this, with photograph and name.",
        "Which catalogue entries, picture and name, fit this description?",
        "Look up an entry of this kind in the catalogue.",
    ),
    "it2i": (
        "Find a photograph of this product in the other colour.",
        "Which picture shows the product after this change?",
        "Show me how this product looks with the change.",
    ),
    "it2t": (
        "Find the name of this product in the other colour.",
        "What is the product called after this change?",
        "Which product name fits the picture with the change?",
    ),
    "it2it": (
        "Find this product in the other colour, with photograph and name.",
        "Which catalogue entry, picture and name, is the product after this change?",
        "Look up the entry of this product with the change.",
    ),
}
"""What is wanted, in words, by task; the wording tells the wanted modality."""
CHANGES = (
    "the same in {}",
    "this, but {}",
    "this one in {} instead",
    "have you got this in {}?",
    "the {} one of these",
)
"""How a change of colour is asked for."""
COLOUR_WORDS: dict[str, tuple[str, ...]] = {
    "beige": ("beige", "sand-coloured"),
    "black": ("black", "jet black"),
    "blue": ("blue", "azure"),
    "brown": ("brown", "chestnut"),
    "burgundy": ("burgundy", "wine red"),
    "charcoal": ("charcoal", "dark grey"),
    "coffee brown": ("coffee brown", "dark brown"),
    "cream": ("cream", "ivory"),
    "gold": ("gold", "golden"),
    "green": ("green", "emerald"),
    "grey": ("grey", "gray"),
    "maroon": ("maroon", "dark red"),
    "navy blue": ("navy blue", "navy", "dark blue"),
    "off white": ("off-white", "eggshell"),
    "olive": ("olive", "olive green"),
    "orange": ("orange", "tangerine"),
    "pink": ("pink", "rose pink"),
    "purple": ("purple", "violet"),
    "red": ("red", "scarlet"),
    "silver": ("silver", "silvery"),
    "turquoise blue": ("turquoise", "turquoise blue"),
    "white": ("white", "snow white"),
    "yellow": ("yellow", "lemon"),
}
"""Words for colours; any other colour is called as the shop does."""
TYPE_WORDS: dict[str, tuple[str, ...]] = {
    "backpacks": ("backpack", "rucksack"),
    "caps": ("cap", "baseball cap"),
    "casual shoes": ("casual shoes", "everyday shoes"),
    "clutches": ("clutch", "clutch bag"),
    "dresses": ("dress", "frock"),
    "flats": ("flats", "flat shoes"),
    "flip flops": ("flip flops", "beach slippers"),
    "formal shoes": ("formal shoes", "dress shoes"),
    "handbags": ("handbag", "purse"),
    "heels": ("heels", "high-heeled shoes"),
    "jackets": ("jacket", "coat"),
    "jeans": ("jeans", "denims"),
    "perfume and body mist": ("perfume", "fragrance"),
    "shirts": ("shirt", "button-up shirt"),
    "sports shoes": ("sports shoes", "trainers"),
    "sunglasses": ("sunglasses", "shades"),
    "sweaters": ("sweater", "jumper"),
    "sweatshirts": ("sweatshirt", "sweat top"),
    "tops": ("top", "blouse"),
    "track pants": ("track pants", "jogging trousers"),
    "trousers": ("trousers", "pants"),
    "tshirts": ("T-shirt", "tee"),
    "wallets": ("wallet", "billfold"),
    "watches": ("watch", "wristwatch"),
}
"""Words for types of product; any other type is called as the shop does."""
PEOPLE: dict[str, tuple[str, ...]] = {
    "men": ("men", "gentlemen"),
    "women": ("women", "ladies"),
    "boys": ("boys",),
    "girls": ("girls",),
}
"""Words for whom a product is made; nobody asks for what is for everybody."""
USES: dict[str, tuple[str, ...]] = {
    "sports": ("sports", "athletic"),
    "formal": ("formal", "business"),
    "ethnic": ("ethnic", "traditional"),
    "party": ("party", "evening"),
    "travel": ("travel",),
    "smart casual": ("smart casual",),
}
"""Words for uses worth asking for; most products are casual."""
ATTRIBUTE_FORMS = (
    "{owner} {use} {colour} {type}",
    "{colour} {use} {type} {reader}",
    "{use} {type} in {colour} {reader}",
    "{owner} {use} {type}, {colour}",
)


def instruction(task: str, dice: Random) -> str:
    """Return one wording of what a task asks for."""
    return dice.choice(INSTRUCTIONS[task])


def colour_words(colour: str, dice: Random) -> str:
    """Return a word for a colour.

    >>> colour_words("Taupe", Random(0))
    'taupe'
    """
    return dice.choice(COLOUR_WORDS.get(colour.lower(), (colour.lower(),)))


def change_words(colour: str, dice: Random) -> str:
    """Ask for the same thing in another colour.

    >>> change_words("Taupe", Random(1))
    'this, but taupe'
    """
    return dice.choice(CHANGES).format(colour_words(colour, dice))


def attribute_words(gender: str, kind: str, colour: str, use: str, dice: Random) -> str:
    """Describe a product by its attributes; an empty gender or use is left out.

    >>> attribute_words("Women", "Handbags", "Taupe", "", Random(5))
    "ladies' purse, taupe"
    """
    people = dice.choice(PEOPLE[gender.lower()]) if gender else ""
    words = {
        "owner": people and f"{people}'{'' if people.endswith('s') else 's'}",
        "reader": people and f"for {people}",
        "type": dice.choice(TYPE_WORDS.get(kind.lower(), (kind.lower(),))),
        "colour": colour_words(colour, dice),
        "use": dice.choice(USES[use.lower()]) if use else "",
    }
    return " ".join(dice.choice(ATTRIBUTE_FORMS).format(**words).split())
