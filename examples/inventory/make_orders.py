#!/usr/bin/env python3
"""Makes data/orders.csv and data/stock.csv for the inventory example.

Deterministic: the same arguments give the same bytes on every machine and Python version, because
only random.Random.random() is used, whose sequence for a seed is guaranteed to stay.

    ./make_orders.py            # writes the checked-in files anew
    ./make_orders.py --check    # fails if the files are not what this script makes
"""

import argparse
import itertools
import pathlib
import random
import sys

TEAS = ["assam", "ceylon", "darjeeling", "earl-grey", "genmaicha", "gunpowder", "jasmine",
        "lapsang", "oolong", "sencha"]
GRAMS = [50, 100, 250, 500]
FIRST_ORDER = 10001
# The n-th most popular SKU is ordered in proportion to 1 / n ** SKEW.
SKEW = 0.8
# How often one, two, … five lines an order, and one, two, … six packs a line, per 100.
LINES_PER_ORDER = [18, 25, 25, 20, 12]
PACKS_PER_LINE = [45, 25, 13, 8, 5, 4]
# Stock in percent of what is ordered, from the most popular SKU on and round again: some run out.
STOCK_PERCENT = [80, 115, 130, 70, 100, 150, 95, 120]


class Dice:
    def __init__(self, seed):
        self._random = random.Random(seed)

    def below(self, n):
        return int(self._random.random() * n)

    def weighted(self, weights):
        """An index, each as often as its weight says."""
        sums = list(itertools.accumulate(weights))
        spot = self._random.random() * sums[-1]
        return next(index for index, bound in enumerate(sums) if spot < bound)

    def shuffled(self, items):
        items = list(items)
        return [items.pop(self.below(len(items))) for _ in range(len(items))]


def make_orders(dice, skus, line_count):
    """Yields (order_id, line_no, sku, quantity); no SKU twice in an order."""
    weights = [1 / rank ** SKEW for rank in range(1, len(skus) + 1)]
    made = 0
    for order_id in itertools.count(FIRST_ORDER):
        chosen = []
        wanted = min(1 + dice.weighted(LINES_PER_ORDER), line_count - made)
        if wanted == 0:
            return
        while len(chosen) < wanted:
            sku = skus[dice.weighted(weights)]
            if sku not in chosen:
                chosen.append(sku)
        for line_no, sku in enumerate(chosen, start=1):
            yield order_id, line_no, sku, 1 + dice.weighted(PACKS_PER_LINE)
        made += wanted


def make_stock(skus, orders):
    ordered = dict.fromkeys(skus, 0)
    for _, _, sku, quantity in orders:
        ordered[sku] += quantity
    percents = itertools.cycle(STOCK_PERCENT)
    return sorted((sku, ordered[sku] * percent // 100) for sku, percent in zip(skus, percents))


def to_csv(header, rows):
    return "".join(",".join(map(str, row)) + "\n" for row in [header, *rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=3000, help="order lines (%(default)s)")
    parser.add_argument("--seed", type=int, default=10086, help="of the generator (%(default)s)")
    parser.add_argument("--directory", type=pathlib.Path,
                        default=pathlib.Path(__file__).parent / "data")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()

    dice = Dice(arguments.seed)
    skus = dice.shuffled(f"{tea}-{grams}g" for tea in TEAS for grams in GRAMS)
    orders = list(make_orders(dice, skus, arguments.lines))
    files = {
        "orders.csv": to_csv(("order_id", "line_no", "sku", "quantity"), orders),
        "stock.csv": to_csv(("sku", "stock"), make_stock(skus, orders)),
    }
    for name, text in files.items():
        path = arguments.directory / name
        if not arguments.check:
            path.write_bytes(text.encode())
        elif not path.is_file() or path.read_bytes() != text.encode():
            sys.exit(f"{path} is not what {parser.prog} makes")


if __name__ == "__main__":
    main()
