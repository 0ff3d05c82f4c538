//! Computes how much each option of a design matters, both alone and together with other options.
//!
//! The explained quantity is the value of a setting divided by the best setting's value for the same workload, CPUs and
//! seed. Because the quantity is a ratio, fast and slow workloads count equally. For each workload and number of CPUs,
//! the variance of this ratio over a design's settings is divided among the options.
//!
//! - the *first-order index* of an option is the part of the variance that the option explains alone, V(E(y |
//!   option)) / V(y);
//! - the *total index* of an option is the part that the option explains either alone or together with other options,
//!   E(V(y | all other options)) / V(y). An option with a small first-order index and a large total index matters only
//!   together with other options. The value of an option with a small total index hardly matters.
//!
//! (Sobol', "Sensitivity Estimates for Nonlinear Mathematical Models", 1993; Homma and Saltelli, "Importance
//! Measures in Global Sensitivity Analysis of Nonlinear Models", 1996.) Variances are first added up over
//! workloads and CPUs, and then divided.
//!
//! All values of an option have the same weight. Two methods estimate the indices:
//!
//! - [`Method::Grid`], if the settings are all combinations of option values: both expectations are sums over
//!   all settings, and exact.
//! - [`Method::Fit`], if the settings are a sample of the combinations. A polynomial in the ranks of the
//!   option values is fitted; its terms are orthonormal over all combinations. The squares of the
//!   polynomial's coefficients are the variances (Sudret, "Global Sensitivity Analysis Using Polynomial Chaos
//!   Expansions", 2008). Terms are added one after another; the next term is always the term that explains
//!   most. The chosen number of terms predicts best: each tenth of the settings is left out of a fit once, and
//!   predicted by it. The report shows the part of the variance that the fit predicts; the indices add up to this part.

use super::analysis::{WorkloadOnCpus, mean, place, ratios_to_best};
use super::record::{Metric, Row};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The largest number of values in a picture. If an option has more values than this, neighbouring values are merged
/// into `MAX_PLOTTED_GROUPS` groups.
const MAX_PLOTTED_GROUPS: usize = 8;
/// The highest degree of a fit; the next two constants limit the candidate terms and the chosen terms.
const MAX_POLYNOMIAL_DEGREE: u32 = 10;
const MAX_POLYNOMIAL_TERMS: usize = 500;
const MAX_SELECTED_TERMS: usize = 60;
/// The number of parts into which the settings are divided for cross-validation. Each fit leaves out one
/// part, to measure how well the fit predicts the part that it left out.
const CROSS_VALIDATION_PARTS: usize = 10;

/// The method by which the sensitivity indices are computed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Method {
    /// An exact computation from all combinations of the options' values.
    Grid,
    /// A fitted polynomial. The field `predicts` is the part of the variance that the polynomial predicts for settings
    /// outside the fit.
    Fit { predicts: f64 },
}

/// The parts of the variance that an option explains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Index {
    /// The first-order index: the part of the variance that the option explains alone.
    pub(super) first: f64,
    /// The total index: the part of the variance that the option explains either alone or together with other options.
    pub(super) total: f64,
}

/// The effect of an option for one workload on one number of CPUs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct WorkloadEffect {
    pub(super) work: String,
    pub(super) cpus: u32,
    pub(super) index: Index,
    /// The mean ratio to the best setting, for each value of the option or group of values.
    pub(super) means: Vec<f64>,
}

/// The effect of one option on the results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Effect {
    pub(super) knob: String,
    /// The index of the option over all workloads and CPUs.
    pub(super) index: Index,
    /// The option's values, or groups of neighbouring values, each with the mean over all workloads and CPUs.
    pub(super) means: Vec<(String, f64)>,
    /// The effect for each workload and number of CPUs; the largest difference of means comes first.
    pub(super) places: Vec<WorkloadEffect>,
}

/// The sensitivity of a design to its options.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Sensitivity {
    pub(super) design: String,
    pub(super) settings: usize,
    /// The number of settings that are omitted because they lack a result for some workload.
    pub(super) left_out: usize,
    pub(super) method: Method,
    /// The part of the variance that differences between seeds alone would cause. The value is `None` if there are
    /// fewer than two seeds.
    pub(super) chance: Option<f64>,
    /// The options; the option with the largest total index comes first.
    pub(super) knobs: Vec<Effect>,
}

/// The mean ratios, one for each seed, indexed by size, operations and think time.
type RatiosByRun = BTreeMap<(Option<u32>, Option<u64>, Option<u32>), Vec<f64>>;

/// Returns the sensitivity of each design that has options. Settings that set different options of one design are
/// treated like settings of different designs.
pub(super) fn sensitivity(rows: &[Row], metric: Metric) -> Vec<Sensitivity> {
    type Group<'a> = (&'a str, Vec<&'a str>);
    let mut groups: BTreeMap<Group<'_>, BTreeMap<Vec<u64>, BTreeMap<WorkloadOnCpus<'_>, RatiosByRun>>> =
        BTreeMap::new();
    for (row, ratio) in ratios_to_best(rows, metric) {
        let (names, values): (Vec<_>, Vec<_>) = row.knobs().unzip();
        let places = groups.entry((row.design(), names)).or_default().entry(values).or_default();
        let reached = places.entry(place(row)).or_default();
        reached.entry((row.size, row.ops, row.think)).or_default().push(ratio);
    }
    groups
        .into_iter()
        .filter_map(|((design, knobs), settings)| design_sensitivity(design, &knobs, settings))
        .collect()
}

fn design_sensitivity(
    design: &str,
    names: &[&str],
    settings: BTreeMap<Vec<u64>, BTreeMap<WorkloadOnCpus<'_>, RatiosByRun>>,
) -> Option<Sensitivity> {
    let all_places: BTreeSet<_> = settings.values().flat_map(|places| places.keys().copied()).collect();
    let count = settings.len();
    let settings: Vec<_> =
        settings.into_iter().filter(|(_, places)| places.len() == all_places.len()).collect();
    // Options with only one value explain nothing.
    let knobs: Vec<(&str, Vec<u64>)> = names
        .iter()
        .enumerate()
        .map(|(at, name)| (*name, settings.iter().map(|(values, _)| values[at]).collect::<BTreeSet<_>>()))
        .map(|(name, values)| (name, values.into_iter().collect::<Vec<_>>()))
        .collect();
    let varied: Vec<usize> = (0..knobs.len()).filter(|knob| knobs[*knob].1.len() > 1).collect();
    if varied.is_empty() {
        return None;
    }
    // A point has a rank for each option.
    let rank = |knob: usize, value: u64| knobs[knob].1.binary_search(&value).unwrap_or_default();
    let points: Vec<Vec<usize>> = settings
        .iter()
        .map(|(values, _)| varied.iter().map(|knob| rank(*knob, values[*knob])).collect())
        .collect();
    let levels: Vec<usize> = varied.iter().map(|knob| knobs[*knob].1.len()).collect();

    let (mut noise, mut has_noise) = (0.0, false);
    let mut values: Vec<(WorkloadOnCpus<'_>, Vec<f64>)> = vec![];
    for at in &all_places {
        let mut of_place = Vec::with_capacity(settings.len());
        for (_, places) in &settings {
            let reached: Vec<_> = places[at].values().map(|seeds| mean(seeds)).collect();
            let n = reached.len() as f64;
            of_place.push(reached.iter().map(|(mean, _)| mean).sum::<f64>() / n);
            has_noise |= reached.iter().any(|(_, variance)| variance.is_some());
            let variance = reached.iter().filter_map(|(_, variance)| *variance).sum::<f64>() / (n * n);
            noise += variance / settings.len() as f64;
        }
        values.push((*at, of_place));
    }
    let variances: Vec<Variances> = values.iter().map(|(_, y)| Variances::of(&points, &levels, y)).collect();
    let sum = |value_of: &dyn Fn(&Variances) -> f64| variances.iter().map(value_of).sum::<f64>();
    let total_variance = sum(&|v| v.whole);
    let part =
        |value: f64, total_variance: f64| if total_variance > 0.0 { value / total_variance } else { 0.0 };
    let effects = varied.iter().enumerate().map(|(axis, knob)| {
        let groups = levels[axis].min(MAX_PLOTTED_GROUPS);
        let group = |rank: usize| rank * groups / levels[axis];
        let means = |y: &[f64]| {
            let value_of = |wanted_level| {
                points
                    .iter()
                    .zip(y)
                    .filter(move |(point, _)| group(point[axis]) == wanted_level)
                    .map(|(_, y)| *y)
            };
            (0..groups)
                .map(|wanted_level| mean(&value_of(wanted_level).collect::<Vec<_>>()).0)
                .collect::<Vec<_>>()
        };
        let mut places: Vec<_> = values
            .iter()
            .zip(&variances)
            .map(|(((work, cpus), y), v)| WorkloadEffect {
                work: (*work).to_owned(),
                cpus: *cpus,
                index: Index { first: part(v.first[axis], v.whole), total: part(v.total[axis], v.whole) },
                means: means(y),
            })
            .collect();
        let n = places.len() as f64;
        let overall = (0..groups).map(|at| places.iter().map(|place| place.means[at]).sum::<f64>() / n);
        let (name, known_function) = &knobs[*knob];
        let names = (0..groups).map(|wanted_level| {
            let mut own_knobs = known_function
                .iter()
                .enumerate()
                .filter(|(rank, _)| group(*rank) == wanted_level)
                .map(|(_, value)| value);
            match (own_knobs.next(), own_knobs.next_back()) {
                (Some(first), Some(last)) => format!("{first} to {last}"),
                (first, _) => first.map(ToString::to_string).unwrap_or_default(),
            }
        });
        let means = names.zip(overall).collect();
        places.sort_by(|a, b| mean_difference(&b.means).total_cmp(&mean_difference(&a.means)));
        let index = Index {
            first: part(sum(&|v| v.first[axis]), total_variance),
            total: part(sum(&|v| v.total[axis]), total_variance),
        };
        Effect { knob: (*name).to_owned(), index, means, places }
    });
    let mut effects: Vec<_> = effects.collect();
    effects.sort_by(|a, b| b.index.total.total_cmp(&a.index.total));
    let method = match is_full_grid(&points, &levels) {
        true => Method::Grid,
        false => Method::Fit { predicts: 1.0 - part(sum(&|v| v.missed), total_variance).min(1.0) },
    };
    Some(Sensitivity {
        design: design.to_owned(),
        settings: count,
        left_out: count - points.len(),
        method,
        chance: has_noise.then(|| part(noise, total_variance).min(1.0)),
        knobs: effects,
    })
}

/// Returns the largest difference between two means.
pub(super) fn mean_difference(means: &[f64]) -> f64 {
    means.iter().copied().fold(f64::MIN, f64::max) - means.iter().copied().fold(f64::MAX, f64::min)
}

fn is_full_grid(points: &[Vec<usize>], levels: &[usize]) -> bool {
    let combinations = levels.iter().try_fold(1_usize, |combinations, n| combinations.checked_mul(*n));
    // A grid has each combination exactly once.
    combinations == Some(points.len())
}

/// The variance of some values, and the parts of the variance that each axis explains.
#[derive(Debug)]
struct Variances {
    whole: f64,
    first: Vec<f64>,
    total: Vec<f64>,
    /// The part of the variance that a fit does not predict; 0 for a grid.
    missed: f64,
}

impl Variances {
    fn of(points: &[Vec<usize>], levels: &[usize], y: &[f64]) -> Self {
        let (mean_value, _) = mean(y);
        let whole = y.iter().map(|y| (y - mean_value).powi(2)).sum::<f64>() / y.len() as f64;
        // Equal values have a variance that is not exactly 0, because of rounding.
        if whole <= (mean_value * 1e-9).powi(2) {
            return Self {
                whole: 0.0,
                first: vec![0.0; levels.len()],
                total: vec![0.0; levels.len()],
                missed: 0.0,
            };
        }
        match is_full_grid(points, levels) {
            true => Self::from_full_grid(points, levels, y, whole),
            false => Self::from_polynomial_fit(points, levels, y, whole),
        }
    }

    /// Returns the mean of the variances within groups of points, E(V(y | these axes)). Two points are in the same
    /// group if they are equal on these axes.
    fn variance_within_groups(points: &[Vec<usize>], y: &[f64], is_given: impl Fn(usize) -> bool) -> f64 {
        let mut groups: BTreeMap<Vec<usize>, Vec<f64>> = BTreeMap::new();
        for (point, y) in points.iter().zip(y) {
            let given_ranks =
                point.iter().enumerate().filter(|(axis, _)| is_given(*axis)).map(|(_, rank)| *rank);
            groups.entry(given_ranks.collect()).or_default().push(*y);
        }
        let within = groups.values().flat_map(|group| {
            let (mean_value, _) = mean(group);
            group.iter().map(move |y| (y - mean_value).powi(2))
        });
        within.sum::<f64>() / y.len() as f64
    }

    fn from_full_grid(points: &[Vec<usize>], levels: &[usize], y: &[f64], whole: f64) -> Self {
        let axes = || 0..levels.len();
        let first = axes()
            .map(|axis| whole - Self::variance_within_groups(points, y, |given_ranks| given_ranks == axis))
            .map(|v| v.max(0.0));
        let total =
            axes().map(|axis| Self::variance_within_groups(points, y, |given_ranks| given_ranks != axis));
        Self { whole, first: first.collect(), total: total.collect(), missed: 0.0 }
    }

    fn from_polynomial_fit(points: &[Vec<usize>], levels: &[usize], y: &[f64], whole: f64) -> Self {
        let Fit { terms, missed } = fit(points, levels, y);
        let sum = |axis: usize, is_of: &dyn Fn(&[u32], usize) -> bool| {
            terms.iter().filter(|(term, _)| is_of(term, axis)).map(|(_, c)| c * c).sum::<f64>()
        };
        let is_alone = |term: &[u32], axis: usize| {
            term.iter().enumerate().all(|(at, degree)| (*degree > 0) == (at == axis))
        };
        let is_included = |term: &[u32], axis: usize| term[axis] > 0;
        // The fit's variance is over all combinations, the values' variance over the settings that ran.
        let fitted = terms.iter().map(|(_, c)| c * c).sum::<f64>();
        let scale = if fitted > 0.0 { (whole - missed).max(0.0) / fitted } else { 0.0 };
        Self {
            whole,
            first: (0..levels.len()).map(|axis| sum(axis, &is_alone) * scale).collect(),
            total: (0..levels.len()).map(|axis| sum(axis, &is_included) * scale).collect(),
            missed: missed.min(whole),
        }
    }
}

/// A polynomial without its constant term: each term has a coefficient, and a degree for each axis.
struct Fit {
    terms: Vec<(Vec<u32>, f64)>,
    /// The mean squared error of the fit at points that were left out of it.
    missed: f64,
}

/// A fitted polynomial: its constant, and its terms, each as a column number and a coefficient.
struct FittedModel {
    constant: f64,
    terms: Vec<(usize, f64)>,
}

/// Makes fits with zero, one, two and more terms, and returns the fit that predicts best. To measure its prediction,
/// each tenth of the points is left out once, and the terms are chosen again without these points.
fn fit(points: &[Vec<usize>], levels: &[usize], y: &[f64]) -> Fit {
    let bases: Vec<_> = levels.iter().map(|levels| polynomials(*levels)).collect();
    let value = |term: &[u32], point: &[usize]| -> f64 {
        term.iter()
            .zip(point)
            .zip(&bases)
            .map(|((degree, rank), basis)| basis[*degree as usize][*rank])
            .product()
    };
    let candidates = all_terms(&bases.iter().map(|basis| basis.len() as u32 - 1).collect::<Vec<_>>());
    let columns: Vec<Vec<f64>> =
        candidates.iter().map(|term| points.iter().map(|point| value(term, point)).collect()).collect();
    let folds = points.len().min(CROSS_VALIDATION_PARTS);
    let mut errors: Vec<f64> = vec![];
    for fold in 0..folds {
        let (left_out, kept_points): (Vec<usize>, Vec<usize>) =
            (0..points.len()).partition(|at| at % folds == fold);
        let path = choose_terms(&columns, y, &kept_points);
        let missed = path.iter().map(|FittedModel { constant, terms }| {
            let explained =
                |at: usize| constant + terms.iter().map(|(term, c)| c * columns[*term][at]).sum::<f64>();
            left_out.iter().map(|at| (y[*at] - explained(*at)).powi(2)).sum::<f64>()
        });
        let missed: Vec<_> = missed.collect();
        match errors.is_empty() {
            true => errors = missed,
            // Folds may have different numbers of terms, so only the numbers that all folds have are compared.
            false => errors = errors.iter().zip(&missed).map(|(a, b)| a + b).collect(),
        }
    }
    let best = errors.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
    let (terms, error) = best.map_or((0, 0.0), |(terms, error)| (terms, *error));
    let mut path = choose_terms(&columns, y, &(0..points.len()).collect::<Vec<_>>());
    let chosen_model = path.swap_remove(terms.min(path.len() - 1));
    let terms = chosen_model.terms.into_iter().map(|(term, c)| (candidates[term].clone(), c)).collect();
    Fit { terms, missed: error / points.len() as f64 }
}

/// A term that was chosen for the fit.
struct Step {
    /// The column number of the term.
    term: usize,
    /// The part of the term's column that is orthogonal to all earlier terms, scaled to length 1.
    direction: Vec<f64>,
    /// The components of the term's column along the directions of the earlier terms and along `direction`.
    parts: Vec<f64>,
    /// The component of the fitted values along `direction`.
    component: f64,
}

/// Chooses terms by orthogonal matching pursuit: each time, the term that explains the largest unexplained part of
/// the values. The components along earlier terms are first subtracted from each term (Gram and Schmidt). Returns one
/// fit to `points` for each number of terms, from zero terms on.
fn choose_terms(columns: &[Vec<f64>], y: &[f64], points: &[usize]) -> Vec<FittedModel> {
    let n = points.len();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let value_of = |values: &[f64]| points.iter().map(|at| values[*at]).collect::<Vec<f64>>();
    let columns: Vec<Vec<f64>> = columns.iter().map(|column| value_of(column)).collect();
    let norms: Vec<f64> = columns.iter().map(|column| dot(column, column).sqrt()).collect();
    // The constant term comes first.
    let constant = vec![(n as f64).sqrt().recip(); n];
    let mut residual = value_of(y);
    let component = dot(&constant, &residual);
    residual
        .iter_mut()
        .zip(&constant)
        .for_each(|(value, direction_part)| *value -= component * direction_part);
    let mut steps =
        vec![Step { term: usize::MAX, direction: constant, parts: vec![(n as f64).sqrt()], component }];
    let mut path = vec![];
    loop {
        // The solution proceeds from the last direction to the first. Each coefficient is the rest of the values'
        // component, divided by the term's.
        let mut coefficients: Vec<f64> = steps.iter().map(|step| step.component).collect();
        let mut terms = vec![];
        for (at, step) in steps.iter().enumerate().rev() {
            let coefficient = coefficients[at] / step.parts[at];
            coefficients
                .iter_mut()
                .zip(&step.parts)
                .take(at)
                .for_each(|(rest, part)| *rest -= coefficient * part);
            terms.push((step.term, coefficient));
        }
        let constant = terms.pop().map_or(0.0, |(_, coefficient)| coefficient);
        path.push(FittedModel { constant, terms });
        if steps.len() + 1 >= n.div_ceil(2).min(MAX_SELECTED_TERMS) {
            return path;
        }
        let gains = columns
            .iter()
            .zip(&norms)
            .enumerate()
            .filter(|(at, (_, norm))| **norm > 0.0 && steps.iter().all(|step| step.term != *at));
        let gains = gains.map(|(at, (column, norm))| (at, dot(column, &residual).abs() / norm));
        let Some((term, _)) = gains.max_by(|a, b| a.1.total_cmp(&b.1)) else { return path };
        let (mut direction, mut parts) = (columns[term].clone(), vec![0.0; steps.len()]);
        // The subtraction runs twice, because rounding leaves a rest the first time.
        for _ in 0..2 {
            for (step, part) in steps.iter().zip(&mut parts) {
                let overlap = dot(&step.direction, &direction);
                *part += overlap;
                direction
                    .iter_mut()
                    .zip(&step.direction)
                    .for_each(|(value, direction_part)| *value -= overlap * direction_part);
            }
        }
        let norm = dot(&direction, &direction).sqrt();
        if norm < 1e-9 * norms[term] {
            return path;
        }
        direction.iter_mut().for_each(|direction_part| *direction_part /= norm);
        parts.push(norm);
        let component = dot(&direction, &residual);
        residual
            .iter_mut()
            .zip(&direction)
            .for_each(|(value, direction_part)| *value -= component * direction_part);
        steps.push(Step { term, direction, parts, component });
    }
}

/// Returns polynomials in the rank, indexed by degree and rank; they are orthonormal if all ranks have equal
/// weight.
fn polynomials(levels: usize) -> Vec<Vec<f64>> {
    let n = levels as f64;
    let rank_positions: Vec<f64> = (0..levels).map(|rank| (2.0 * rank as f64 + 1.0) / n - 1.0).collect();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>() / n;
    let mut basis = vec![vec![1.0; levels]];
    while basis.len() < levels && basis.len() <= MAX_POLYNOMIAL_DEGREE as usize {
        let Some(last) = basis.last() else { break };
        let mut next_polynomial: Vec<f64> =
            last.iter().zip(&rank_positions).map(|(value, rank_positions)| value * rank_positions).collect();
        for _ in 0..2 {
            for before in &basis {
                let part = dot(before, &next_polynomial);
                next_polynomial.iter_mut().zip(before).for_each(|(value, before)| *value -= part * before);
            }
        }
        let norm = dot(&next_polynomial, &next_polynomial).sqrt();
        next_polynomial.iter_mut().for_each(|value| *value /= norm);
        basis.push(next_polynomial);
    }
    basis
}

/// Returns all terms except the constant, sorted by total degree, up to a limit; a term has one degree for
/// each axis.
fn all_terms(max_degrees: &[u32]) -> Vec<Vec<u32>> {
    let mut exponents: Vec<Vec<u32>> = vec![];
    let mut last = vec![vec![0; max_degrees.len()]];
    for _ in 0..MAX_POLYNOMIAL_DEGREE {
        let next: BTreeSet<Vec<u32>> = last
            .iter()
            .flat_map(|term| {
                (0..max_degrees.len()).filter(|axis| term[*axis] < max_degrees[*axis]).map(|axis| {
                    let mut next = term.clone();
                    next[axis] += 1;
                    next
                })
            })
            .collect();
        if next.is_empty() || exponents.len() + next.len() > MAX_POLYNOMIAL_TERMS {
            break;
        }
        last = next.into_iter().collect();
        exponents.extend(last.iter().cloned());
    }
    exponents
}

#[cfg(test)]
mod tests {
    use super::super::analysis::tests::row;
    use super::super::sample;
    use super::*;
    use std::f64::consts::PI;

    /// A test function whose exact indices follow from its formula; its axes go from 0 to 1.
    struct AnalyticTestFunction {
        of: fn(&[f64]) -> f64,
        indices: &'static [(f64, f64)],
    }

    /// The function 3a + b: the two options have variances in the ratio 9 to 1, and share no part of the
    /// variance.
    const SUM_FUNCTION: AnalyticTestFunction =
        AnalyticTestFunction { of: |x| 3.0 * x[0] + x[1], indices: &[(0.9, 0.9), (0.1, 0.1)] };
    /// The function (a - ½)(b - ½): the two options share the whole variance.
    const PRODUCT_FUNCTION: AnalyticTestFunction =
        AnalyticTestFunction { of: |x| (x[0] - 0.5) * (x[1] - 0.5), indices: &[(0.0, 1.0), (0.0, 1.0)] };
    /// The function of Ishigami and Homma (1990), with a = 7 and b = 0.1.
    const ISHIGAMI_FUNCTION: AnalyticTestFunction = AnalyticTestFunction {
        of: |x| {
            let [a, b, c] = [0, 1, 2].map(|axis| (2.0 * x[axis] - 1.0) * PI);
            a.sin() + 7.0 * b.sin().powi(2) + 0.1 * c.powi(4) * a.sin()
        },
        indices: &[(0.3139, 0.5576), (0.4424, 0.4424), (0.0, 0.2437)],
    };
    /// Sobol's g function with a = 0, 1, 4.5 and 9: each factor has the variance 1 / 3(1 + a)².
    const G: AnalyticTestFunction = AnalyticTestFunction {
        of: |x| {
            [0.0, 1.0, 4.5, 9.0].iter().zip(x).map(|(a, x)| ((4.0 * x - 2.0).abs() + a) / (1.0 + a)).product()
        },
        indices: &[(0.7165, 0.7953), (0.1791, 0.2423), (0.0237, 0.0344), (0.0072, 0.0105)],
    };

    fn indices(
        known_function: &AnalyticTestFunction,
        points: &[Vec<usize>],
        levels: usize,
    ) -> (Vec<(f64, f64)>, f64) {
        let place = |rank: &usize| (*rank as f64 + 0.5) / levels as f64;
        let y: Vec<f64> = points
            .iter()
            .map(|point| (known_function.of)(&point.iter().map(place).collect::<Vec<_>>()))
            .collect();
        let variances = Variances::of(points, &vec![levels; points[0].len()], &y);
        let pairs = variances
            .first
            .iter()
            .zip(&variances.total)
            .map(|(f, t)| (f / variances.whole, t / variances.whole));
        (pairs.collect(), 1.0 - variances.missed / variances.whole)
    }

    fn grid(axes: usize, levels: usize) -> Vec<Vec<usize>> {
        (0..levels.pow(axes as u32))
            .map(|n| (0..axes as u32).map(|axis| n / levels.pow(axis) % levels).collect())
            .collect()
    }

    fn sampled(axes: usize, points: u32) -> Vec<Vec<usize>> {
        let parts = sample::strata(points, &vec![points as usize; axes], 7);
        (0..points as usize).map(|point| parts.iter().map(|axis| axis[point] as usize).collect()).collect()
    }

    #[track_caller]
    fn assert_variances_near(
        variances: &[(f64, f64)],
        known_function: &AnalyticTestFunction,
        tolerance: f64,
    ) {
        for (index, known) in variances.iter().zip(known_function.indices) {
            assert!(
                (index.0 - known.0).abs() < tolerance && (index.1 - known.1).abs() < tolerance,
                "{variances:?} {known:?}"
            );
        }
    }

    #[test]
    fn sensitivity_indices_on_a_grid_equal_the_formula() {
        assert_variances_near(&indices(&SUM_FUNCTION, &grid(2, 4), 4).0, &SUM_FUNCTION, 1e-12);
        assert_variances_near(&indices(&PRODUCT_FUNCTION, &grid(2, 2), 2).0, &PRODUCT_FUNCTION, 1e-12);
        // The remaining error is the difference between a sum and an integral.
        assert_variances_near(&indices(&ISHIGAMI_FUNCTION, &grid(3, 24), 24).0, &ISHIGAMI_FUNCTION, 0.01);
        assert_variances_near(&indices(&G, &grid(4, 10), 10).0, &G, 0.01);
    }

    #[test]
    fn sensitivity_indices_of_a_sample_approximate_the_formula() {
        for (known_function, axes, points, tolerance) in [
            (&SUM_FUNCTION, 2, 16, 1e-6),
            (&PRODUCT_FUNCTION, 2, 16, 1e-6),
            (&ISHIGAMI_FUNCTION, 3, 200, 0.03),
            (&G, 4, 200, 0.06),
        ] {
            let (variances, predicts) = indices(known_function, &sampled(axes, points), points as usize);
            assert_variances_near(&variances, known_function, tolerance);
            assert!(predicts > 0.85, "{predicts}");
        }
    }

    #[test]
    fn fit_to_noise_predicts_nothing() {
        let points = sampled(3, 64);
        let mut chance = 1_u64;
        let mut next_value = || {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (chance >> 40) as f64
        };
        let y: Vec<f64> = points.iter().map(|_| next_value()).collect();
        let variances = Variances::of(&points, &[64; 3], &y);
        assert!(variances.missed > 0.7 * variances.whole, "{variances:?}");
        assert!(variances.total.iter().all(|total| *total < 0.3 * variances.whole), "{variances:?}");
    }

    #[test]
    fn polynomials_are_orthonormal_over_the_ranks() {
        for levels in [2, 3, 5, 32, 500] {
            let basis = polynomials(levels);
            assert_eq!(basis.len(), levels.min(MAX_POLYNOMIAL_DEGREE as usize + 1));
            for (i, a) in basis.iter().enumerate() {
                for (j, b) in basis.iter().enumerate() {
                    let dot = a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>() / levels as f64;
                    assert!((dot - f64::from(u8::from(i == j))).abs() < 1e-9, "{levels}: {i} {j} {dot}");
                }
            }
        }
    }

    /// Regression test: when raw values of all workloads were mixed, a fast workload hid an option that quadruples a
    /// slow workload's speed. With this bug, the option seemed to explain only 0.2 %.
    #[test]
    fn knob_affecting_only_a_slow_workload_is_found() {
        let mut rows = vec![];
        for capacity in [8, 64] {
            for limit in [1, 2] {
                for seed in 1..=3 {
                    let setting = format!("d:capacity={capacity}:limit={limit}");
                    rows.push(row("fast", 4, seed, &setting, 1000.0 + f64::from(limit)));
                    rows.push(row("slow", 4, seed, &setting, if capacity == 64 { 4.2 } else { 1.0 }));
                }
            }
        }
        let designs = sensitivity(&rows, "operations_per_us".parse().unwrap());
        let [design] = &designs[..] else { panic!("{designs:?}") };
        assert_eq!((design.method, design.settings), (Method::Grid, 4));
        assert!(design.chance.unwrap() < 1e-9, "{designs:?}");
        let [capacity, limit] = &design.knobs[..] else { panic!("{designs:?}") };
        assert_eq!((&*capacity.knob, &*limit.knob), ("capacity", "limit"));
        assert!(capacity.index.first > 0.999 && limit.index.total < 0.001, "{designs:?}");
        assert_eq!((&*capacity.places[0].work, capacity.places[0].means[1]), ("slow", 1.0));
        assert!((mean_difference(&capacity.places[0].means) - (1.0 - 1.0 / 4.2)).abs() < 1e-12);
        // On the fast workload the other option has small effects, but no option competes, so its index is 1.
        assert_eq!((&*limit.places[0].work, limit.places[0].index.total), ("fast", 1.0));
    }

    #[test]
    fn purely_interacting_knob_has_no_first_order_index() {
        let rows: Vec<_> = [(0, 0, 1.0), (0, 1, 2.0), (1, 0, 2.0), (1, 1, 1.0)]
            .into_iter()
            .map(|(a, b, value)| row("w", 1, 1, &format!("d:a={a}:b={b}"), value))
            .collect();
        let designs = sensitivity(&rows, "operations_per_us".parse().unwrap());
        for knob in &designs[0].knobs {
            assert_eq!(knob.index, Index { first: 0.0, total: 1.0 });
        }
        assert_eq!(designs[0].chance, None, "one seed must give no estimate of chance");
    }

    #[test]
    fn long_axis_values_are_grouped() {
        let mut rows: Vec<_> =
            (0..20).map(|n| row("w", 1, 1, &format!("d:k={n}"), f64::from(n) + 1.0)).collect();
        rows.extend((0..19).map(|n| row("v", 1, 1, &format!("d:k={n}"), 1.0)));
        rows.push(row("w", 1, 1, "other", 1.0));
        let designs = sensitivity(&rows, "operations_per_us".parse().unwrap());
        assert_eq!((designs.len(), designs[0].settings, designs[0].left_out), (1, 20, 1));
        let means = &designs[0].knobs[0].means;
        assert_eq!((means.len(), &*means[0].0), (MAX_PLOTTED_GROUPS, "0 to 2"));
    }
}
