//! As equal a number of neighbours per node as degrees allow, under the budget of a
//! hop.

use super::floyd::Bits;
use super::law::{Law, Most, Row};
use super::uniform::draw_distinct;
use crate::Error;
use crate::csc::Id;
use crate::read::load;
use crate::relations::Relations;
use crate::view::View;

/// Counts s_v <= d_v that sum to `budget` with the least variance, or to less only if
/// all are full: water-filling, s_v = min(d_v, level). The remaining draws go one each to
/// the first nodes that have more.
pub fn water_fill(degrees: &[usize], budget: usize) -> Vec<usize> {
    let sum = |level| {
        degrees
            .iter()
            .fold(0usize, |sum, &degree| sum.saturating_add(degree.min(level)))
    };
    // The highest level with a sum within the budget.
    let (mut low, mut high) = (0, degrees.iter().copied().max().unwrap_or_default());
    while low < high {
        let level = low + (high - low).div_ceil(2);
        if sum(level) <= budget {
            low = level;
        } else {
            high = level - 1;
        }
    }
    let mut rest = budget - sum(low);
    let raise = |&degree: &usize| {
        let more = usize::from(rest > 0 && degree > low);
        rest -= more;
        degree.min(low) + more
    };
    degrees.iter().map(raise).collect()
}

/// Uniform draws, as many per row as water-filling says. By relation, the nodes of a
/// hop with in-edges of a relation share its budget.
pub(crate) struct Balanced {
    key: u64,
    counts: Vec<usize>, // [num_rows]
    firsts: Vec<usize>, // [num_nodes] the first row of each node. Empty: a node is a row
}

impl Balanced {
    pub fn new<I: Id>(graph: &View<'_, I>, nodes: &[I], key: u64, most: Most<'_>) -> Result<Self, Error> {
        let firsts = Vec::new();
        if let Some(relations) = &graph.extra().relations {
            return Self::by_relation(graph, relations, nodes, key, most);
        }
        if let Some(counts) = graph.extra().counts {
            let counts = nodes.iter().map(|node| given(counts, node.index()));
            let counts = counts.collect::<Result<_, _>>()?;
            return Ok(Self { key, counts, firsts });
        }
        let degree = |node: &I| graph.edges(node.index()).map(|edges| edges.len());
        let degrees: Vec<usize> = nodes.iter().map(degree).collect::<Result<_, _>>()?;
        let counts = water_fill(&degrees, most.of(0).saturating_mul(nodes.len()));
        Ok(Self { key, counts, firsts })
    }

    fn by_relation<I: Id>(
        graph: &View<'_, I>,
        relations: &Relations<'_>,
        nodes: &[I],
        key: u64,
        most: Most<'_>,
    ) -> Result<Self, Error> {
        if graph.extra().counts.is_some() {
            return Err(Error::ByRelation { name: "counts" });
        }
        let (mut firsts, mut num_rows) = (Vec::with_capacity(nodes.len()), 0);
        let mut rows = vec![(Vec::new(), Vec::new()); relations.num_relations]; // positions and degrees
        for node in nodes {
            firsts.push(num_rows);
            let edges = graph.edges(node.index())?;
            for group in relations.groups(node.index())? {
                let group = relations.group(group, node.index(), &edges)?;
                rows[group.relation].0.push(num_rows);
                rows[group.relation].1.push(group.degree);
                num_rows += 1;
            }
        }
        let mut counts = vec![0; num_rows];
        for (relation, (at, degrees)) in rows.iter().enumerate() {
            let budget = most.of(relation).saturating_mul(degrees.len());
            for (&at, count) in at.iter().zip(water_fill(degrees, budget)) {
                counts[at] = count;
            }
        }
        Ok(Self { key, counts, firsts })
    }
}

/// The number of draws that the caller gives `node`.
fn given(counts: &[i64], node: usize) -> Result<usize, Error> {
    let value = load(&counts[node]);
    usize::try_from(value).map_err(|_| Error::OutOfRange {
        name: "counts",
        position: node,
        value,
        bound: isize::MAX as usize,
        of: "draws",
    })
}

impl Law for Balanced {
    type Room = Bits;

    #[inline(always)]
    fn draw(&self, row: &Row, bits: &mut Bits, out: &mut Vec<i64>) -> Result<(), Error> {
        let at = self.firsts.get(row.at).map_or(row.at, |first| first + row.nth);
        draw_distinct(self.key, self.counts[at], row, bits, out);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Raises the lowest count that may be raised, one at a time.
    fn one_by_one(degrees: &[usize], budget: usize) -> Vec<usize> {
        let mut counts = vec![0; degrees.len()];
        while counts.iter().sum::<usize>() < budget {
            let open = (0..degrees.len()).filter(|&node| counts[node] < degrees[node]);
            let Some(lowest) = open.min_by_key(|&node| (counts[node], node)) else {
                break;
            };
            counts[lowest] += 1;
        }
        counts
    }

    proptest! {
        #[test]
        fn water_filling_equals_raising_the_lowest(
            degrees in prop::collection::vec(0usize..40, 0..12), budget in 0usize..200,
        ) {
            prop_assert_eq!(water_fill(&degrees, budget), one_by_one(&degrees, budget));
        }
    }

    /// All counts that sum to `sum`.
    fn choices(full: &[usize], sum: usize) -> Vec<Vec<usize>> {
        let Some((&first, rest)) = full.split_first() else {
            return if sum == 0 { vec![vec![]] } else { vec![] };
        };
        let with = |count: usize| {
            choices(rest, sum - count)
                .into_iter()
                .map(move |tail| [vec![count], tail].concat())
        };
        (0..=first.min(sum)).flat_map(with).collect()
    }

    #[test]
    fn no_other_choice_has_less_variance() {
        for degrees in [[0, 1, 4, 5], [3, 3, 3, 3], [5, 1, 0, 2], [5, 5, 5, 1]] {
            for budget in 0..22 {
                let counts = water_fill(&degrees, budget);
                let squares = |counts: &[usize]| counts.iter().map(|&count| count * count).sum::<usize>();
                let sum = budget.min(degrees.iter().sum());
                assert_eq!(counts.iter().sum::<usize>(), sum);
                let least = choices(&degrees, sum).iter().map(|choice| squares(choice)).min();
                assert_eq!(Some(squares(&counts)), least, "{degrees:?} {budget}");
            }
        }
    }
}
