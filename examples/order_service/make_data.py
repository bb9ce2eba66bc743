#!/usr/bin/env python3
"""Makes data/orders.csv and data/stock.csv: orders of several lines each, and a stock that doesn't
suffice for all of them.

Deterministic: the same arguments give the same bytes with every version of Python, because only
random.Random.random() is used.

    ./make_data.py            # writes the files anew
    ./make_data.py --check    # fails if the files are not what this script makes
"""

import argparse
import pathlib
import random
import sys

PARTS = ["bolt", "bracket", "cable", "fan", "filter", "gasket", "hinge", "lamp", "motor", "panel",
         "pump", "relay", "sensor", "spring", "switch", "valve"]
MOST_LINES = 4
MOST_PIECES = 5
FIRST_ORDER = 20001
# Stock in percent of what is ordered, from SKU to SKU and round again: some run out.
STOCK_PERCENT = [90, 130, 110, 75, 120]


class Dice:
    def __init__(self, seed):
        self._random = random.Random(seed)

    def below(self, n):
        return int(self._random.random() * n)

    def rather_low(self, n):
        """Below n, the lower the likelier."""
        return min(self.below(n), self.below(n))

    def some(self, items, count):
        """`count` different items in any order, the first ones likelier."""
        left = list(items)
        return [left.pop(self.rather_low(len(left))) for _ in range(count)]


def make_orders(dice, count):
    for order_id in range(FIRST_ORDER, FIRST_ORDER + count):
        skus = dice.some(PARTS, 1 + dice.below(MOST_LINES))
        for line_no, sku in enumerate(skus, start=1):
            yield order_id, line_no, sku, 1 + dice.rather_low(MOST_PIECES)


def make_stock(dice, orders):
    for number, sku in enumerate(PARTS):
        ordered = sum(quantity for _, _, ordered_sku, quantity in orders if ordered_sku == sku)
        percent = STOCK_PERCENT[number % len(STOCK_PERCENT)]
        yield sku, ordered * percent // 100, 95 + 100 * dice.below(40)


def to_csv(header, rows):
    return "".join(",".join(map(str, row)) + "\n" for row in [header, *rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orders", type=int, default=400, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=20001, help="of the generator (%(default)s)")
    parser.add_argument("--directory", type=pathlib.Path,
                        default=pathlib.Path(__file__).parent / "data")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()

    dice = Dice(arguments.seed)
    orders = list(make_orders(dice, arguments.orders))
    files = {
        "orders.csv": to_csv(("order_id", "line_no", "sku", "quantity"), orders),
        "stock.csv": to_csv(("sku", "stock", "price_cents"), make_stock(dice, orders)),
    }
    for name, text in files.items():
        path = arguments.directory / name
        if not arguments.check:
            path.write_bytes(text.encode())
        elif not path.is_file() or path.read_bytes() != text.encode():
            sys.exit(f"{path} is not what {parser.prog} makes")


if __name__ == "__main__":
    main()
