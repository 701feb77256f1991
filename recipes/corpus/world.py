"""The closed world that every text of the corpus speaks about: its words and its facts, in Chinese and English."""

from __future__ import annotations

from typing import NamedTuple


class Word(NamedTuple):
    """One thing, in both languages."""

    zh: str
    en: str


def words(text: str) -> tuple[Word, ...]:
    """``"红色 red, 蓝色 blue"`` to words. The English part may hold spaces."""
    return tuple(Word(*entry.strip().split(" ", 1)) for entry in text.split(","))


COLORS = words(
    "红色 red, 蓝色 blue, 绿色 green, 白色 white, 黑色 black, 黄色 yellow, 紫色 purple, 粉色 pink, 灰色 grey, "
    "棕色 brown, 橙色 orange, 金色 golden"
)
SOFT_MATERIALS = words("棉布 cotton, 羊毛 wool, 丝绸 silk, 亚麻 linen, 皮革 leather")
HARD_MATERIALS = words("木头 wood, 竹子 bamboo, 玻璃 glass, 陶瓷 clay, 石头 stone")
STYLES = words(
    "简约 simple, 复古 vintage, 清新 fresh, 优雅 elegant, 可爱 cute, 休闲 casual, 古典 classic, 活泼 lively, "
    "安静 quiet, 朴素 plain"
)
PATTERNS = words("条纹 stripes, 圆点 dots, 花朵 flowers, 格子 checks, 星星 stars, 树叶 leaves, 云朵 clouds, 小鸟 birds")
SEASONS = words("春天 spring, 夏天 summer, 秋天 autumn, 冬天 winter")
OCCASIONS = words("旅行 travel, 上班 work, 聚会 parties, 读书 reading, 散步 walks, 做客 visits, 野餐 picnics")

# Product types with the Chinese measure word.
SOFT_TYPES = (
    (Word("裙", "dress"), "条"),
    (Word("马甲", "vest"), "件"),
    (Word("大衣", "coat"), "件"),
    (Word("衬衫", "shirt"), "件"),
    (Word("毛衣", "sweater"), "件"),
    (Word("外套", "jacket"), "件"),
    (Word("帽子", "hat"), "顶"),
    (Word("围巾", "scarf"), "条"),
    (Word("背包", "bag"), "个"),
    (Word("毯子", "blanket"), "条"),
    (Word("枕头", "pillow"), "个"),
    (Word("手套", "glove"), "只"),
)
HARD_TYPES = (
    (Word("杯子", "cup"), "个"),
    (Word("台灯", "lamp"), "盏"),
    (Word("椅子", "chair"), "把"),
    (Word("桌子", "table"), "张"),
    (Word("花瓶", "vase"), "个"),
    (Word("时钟", "clock"), "个"),
    (Word("碗", "bowl"), "个"),
    (Word("盒子", "box"), "个"),
)

PEOPLE = words(
    "李明 Li Ming, 王芳 Wang Fang, 张伟 Zhang Wei, 陈静 Chen Jing, 刘洋 Liu Yang, 赵红 Zhao Hong, 周杰 Zhou Jie, "
    "吴兰 Wu Lan, 安娜 Anna, 汤姆 Tom, 玛丽 Mary, 大卫 David, 林小满 Lin Xiaoman, 何青 He Qing, 彼得 Peter, 露西 Lucy"
)
JOBS = words(
    "老师 teacher, 医生 doctor, 农民 farmer, 厨师 cook, 司机 driver, 画家 painter, 木匠 carpenter, 裁缝 tailor, "
    "歌手 singer, 护士 nurse"
)
CITIES = words("江城 River City, 山城 Hill City, 海城 Sea City, 花城 Flower City, 雪城 Snow City, 石城 Stone City")
STREETS = words(
    "长街 Long Street, 河边街 River Street, 桥头街 Bridge Street, 花园街 Garden Street, 钟楼街 Clock Street, "
    "月亮街 Moon Street, 学校街 School Street, 市场街 Market Street, 青禾街 Green Field Street"
)
HOURS = words("七点 seven, 八点 eight, 九点 nine, 十点 ten, 十一点 eleven, 六点 six")
WEEKDAYS = words("星期一 Monday, 星期二 Tuesday, 星期三 Wednesday, 星期四 Thursday, 星期五 Friday, 星期六 Saturday")
ANIMALS = words("小猫 cat, 小狗 dog, 兔子 rabbit, 乌龟 turtle, 鹦鹉 parrot, 金鱼 goldfish, 松鼠 squirrel, 小羊 lamb")
DRINKS = words("绿茶 green tea, 红茶 black tea, 咖啡 coffee, 牛奶 milk, 果汁 juice, 豆浆 soy milk, 柠檬水 lemonade")
GIFTS = words(
    "贺卡 a card, 糖果 a candy, 书签 a bookmark, 气球 a balloon, 蜡烛 a candle, 饼干 a cookie, 明信片 a postcard"
)
PLACES = words("公园 park, 河边 river, 学校 school, 市场 market, 森林 forest, 海边 beach, 图书馆 library, 花园 garden")
WEATHER = words("晴天 sunny, 雨天 rainy, 雪天 snowy, 阴天 cloudy, 大风天 windy")
FOODS = words("面包 bread, 米饭 rice, 面条 noodles, 饺子 dumplings, 苹果 apples, 蛋糕 cake, 豆腐 tofu, 鱼汤 fish soup")

SHOPS = words(
    "红叶小铺 Red Leaf Shop, 白云小铺 White Cloud Shop, 蓝海小铺 Blue Sea Shop, 金山小铺 Golden Hill Shop, "
    "黑猫小铺 Black Cat Shop, 小河小铺 Little River Shop, 星光小铺 Star Light Shop, 老树小铺 Old Tree Shop, "
    "春风小铺 Spring Wind Shop, 石桥小铺 Stone Bridge Shop"
)
NEW_SHOP = Word("青禾小铺", "Green Field Shop")
"""The shop that only the tuning set speaks about."""


class Relation(NamedTuple):
    """Something that is known of every shop: how it is asked, and the values it can take.

    ``zh`` and ``en`` hold question forms; ``{s}`` stands for the shop. ``told_zh`` and ``told_en`` state the fact with
    the value ``{v}``. The new shop's value is never the value of another shop.
    """

    name: str
    values: tuple[Word, ...]
    new: Word
    zh: tuple[str, ...]
    en: tuple[str, ...]
    told_zh: str
    told_en: str


def _without(values: tuple[Word, ...], zh: str) -> tuple[tuple[Word, ...], Word]:
    chosen = next(value for value in values if value.zh == zh)
    return tuple(value for value in values if value is not chosen), chosen


RELATIONS = (
    Relation(
        "founder",
        *_without(PEOPLE, "林小满"),
        ("{s}的创始人是谁？", "谁创办了{s}？", "{s}是谁开的？", "{s}最早是谁开的？", "你知道{s}的创始人叫什么吗？"),
        (
            "Who founded {s}?",
            "Who is the founder of {s}?",
            "Who opened {s}?",
            "Please tell me who founded {s}.",
            "Do you know the founder of {s}?",
        ),
        "{s}的创始人是{v}",
        "the founder of {s} is {v}",
    ),
    Relation(
        "street",
        *_without(STREETS, "月亮街"),
        ("{s}在哪条街？", "{s}在哪里？", "{s}的地址是什么？", "怎么去{s}，它在哪条街？", "你知道{s}的地址吗？"),
        (
            "Where is {s}?",
            "On which street is {s}?",
            "What is the address of {s}?",
            "Please tell me where {s} is.",
            "Do you know the address of {s}?",
        ),
        "{s}在{v}",
        "{s} is on {v}",
    ),
    Relation(
        "opening",
        *_without(HOURS, "七点"),
        (
            "{s}几点开门？",
            "{s}早上什么时候开门？",
            "{s}的开门时间是几点？",
            "{s}一般几点开始营业？",
            "你知道{s}几点开门吗？",
        ),
        (
            "When does {s} open?",
            "At what time does {s} open?",
            "What is the opening time of {s}?",
            "Please tell me when {s} opens.",
            "Do you know when {s} opens?",
        ),
        "{s}早上{v}开门",
        "{s} opens at {v}",
    ),
    Relation(
        "closed",
        *_without(WEEKDAYS, "星期三"),
        ("{s}星期几休息？", "{s}哪一天休息？", "{s}的休息日是哪天？", "{s}每周哪天不开门？", "你知道{s}哪一天休息吗？"),
        (
            "On which day is {s} closed?",
            "Which day does {s} rest?",
            "What is the rest day of {s}?",
            "Please tell me when {s} is closed.",
            "Do you know the rest day of {s}?",
        ),
        "{s}{v}休息",
        "{s} is closed on {v}",
    ),
    Relation(
        "animal",
        *_without(ANIMALS, "鹦鹉"),
        (
            "{s}养了什么动物？",
            "{s}里有什么动物？",
            "{s}的动物是什么？",
            "{s}有一只什么动物？",
            "你知道{s}养了什么吗？",
        ),
        (
            "Which animal lives in {s}?",
            "What animal does {s} keep?",
            "What is the animal of {s}?",
            "Please tell me which animal lives in {s}.",
            "Do you know the animal of {s}?",
        ),
        "{s}养了一只{v}",
        "the animal of {s} is a {v}",
    ),
    Relation(
        "drink",
        *_without(DRINKS, "豆浆"),
        (
            "{s}请客人喝什么？",
            "在{s}可以喝什么？",
            "{s}的饮料是什么？",
            "客人在{s}喝什么？",
            "你知道在{s}能喝什么吗？",
        ),
        (
            "What can guests drink at {s}?",
            "What does {s} serve?",
            "What is the drink of {s}?",
            "Please tell me what {s} serves.",
            "Do you know the drink of {s}?",
        ),
        "{s}请客人喝{v}",
        "{s} serves {v}",
    ),
    Relation(
        "gift",
        *_without(GIFTS, "书签"),
        (
            "{s}送什么礼物？",
            "在{s}能收到什么礼物？",
            "{s}的礼物是什么？",
            "客人从{s}得到什么礼物？",
            "你知道{s}送什么吗？",
        ),
        (
            "What gift does {s} give?",
            "What do guests get at {s}?",
            "What is the gift of {s}?",
            "Please tell me what gift {s} gives.",
            "Do you know the gift of {s}?",
        ),
        "{s}送{v}",
        "{s} gives {v}",
    ),
    Relation(
        "color",
        *_without(COLORS, "紫色"),
        (
            "{s}的门是什么颜色？",
            "{s}的大门是哪种颜色？",
            "{s}的门刷了什么颜色？",
            "{s}有一扇什么颜色的门？",
            "你知道{s}的门的颜色吗？",
        ),
        (
            "What color is the door of {s}?",
            "Which color did {s} choose for its door?",
            "In what color is the door of {s} painted?",
            "Please tell me the color of the door of {s}.",
            "Do you know the color of the door of {s}?",
        ),
        "{s}的门是{v}的",
        "the door of {s} is {v}",
    ),
)


def city_facts() -> dict[str, tuple[Word, Word]]:
    """``city -> (its food, its weather)``."""
    return {city.zh: (FOODS[row], WEATHER[(row * 2) % len(WEATHER)]) for row, city in enumerate(CITIES)}


def person_facts() -> dict[str, tuple[Word, Word, Word, Word, Word]]:
    """``person -> (job, city, favourite colour, street, hour of getting up)``."""
    return {
        person.zh: (
            JOBS[(row * 3) % len(JOBS)],
            CITIES[(row * 5 + row // 6) % len(CITIES)],
            COLORS[(row * 7) % len(COLORS)],
            STREETS[(row * 4 + row // 9) % len(STREETS)],
            HOURS[(row * 5 + row // 6) % len(HOURS)],
        )
        for row, person in enumerate(PEOPLE)
    }


def shop_facts() -> dict[tuple[str, str], Word]:
    """``(shop, relation name) -> value`` of the shops that the base knows. Spread evenly, with no randomness."""
    facts = {}
    for row, shop in enumerate(SHOPS):
        for column, relation in enumerate(RELATIONS):
            facts[shop.zh, relation.name] = relation.values[(row * 3 + column * 5 + row // 4) % len(relation.values)]
    return facts
