//! Factors a number by continued fractions with integers of arbitrary size; the program allocates many tiny blocks,
//! each of which lives for one operation.
//!
//! Source: Morrison and Brillhart, "A method of factoring and the factorization of F7" (1975), and Knuth's
//! *Seminumerical Algorithms*, section 4.5.4. The convergents of the number's square root give squares that are small
//! modulo the number. Squares that have only small factors are combined into a congruence of two squares. Each
//! operation returns its result in a new block.

use crate::common::{Parameter, Program};
use std::cmp::Ordering;
use std::ops::{Add, Mul, Sub};

pub(crate) const PROGRAM: Program = Program {
    name: "cfrac",
    about: "factors the product of two primes by continued fractions; an operation is a trial division",
    parameters: &[
        Parameter::new("p", 1_000_000_000_000_037, 100_003, "a prime"),
        Parameter::new("q", 3_000_000_000_000_037, 300_007, "the other factor"),
        Parameter::new("base", 300, 40, "primes to divide by"),
    ],
    run: |parameters| {
        let [p, q] = ["p", "q"].map(|name| NaturalNumber::from(parameters.get(name)));
        let (factor, divisions) = factor(&(&p * &q), parameters.size("base"));
        if factor != p && factor != q {
            eprintln!(
                "corrupted, or the number is no product of two primes: the factor found is {:?}",
                factor.0
            );
            std::process::exit(1);
        }
        divisions
    },
};

/// A natural number as an array of digits, lowest digit first; the highest digit is not 0. The digits of a number are
/// stored in a block of exactly their length.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NaturalNumber(Vec<u32>);

impl From<u64> for NaturalNumber {
    fn from(number: u64) -> Self {
        Self::from_digits(vec![number as u32, (number >> 32) as u32])
    }
}

impl NaturalNumber {
    fn from_digits(mut digits: Vec<u32>) -> Self {
        while digits.last() == Some(&0) {
            digits.pop();
        }
        Self(digits)
    }
    fn is_one(&self) -> bool {
        self.0 == [1]
    }
    fn bits(&self) -> usize {
        self.0.last().map_or(0, |top| 32 * self.0.len() - top.leading_zeros() as usize)
    }
    /// Returns the quotient and the remainder of a division by one digit.
    fn divided_by_digit(&self, divisor: u32) -> (Self, u32) {
        let mut remainder = 0;
        let mut quotient = self.0.clone();
        for digit in quotient.iter_mut().rev() {
            let value = u64::from(remainder) << 32 | u64::from(*digit);
            *digit = (value / u64::from(divisor)) as u32;
            remainder = (value % u64::from(divisor)) as u32;
        }
        (Self::from_digits(quotient), remainder)
    }
    fn shifted(&self, bits: usize) -> Self {
        let mut digits = vec![0; bits / 32];
        digits.reserve_exact(self.0.len() + 1);
        let (bits, mut carry) = (bits % 32, 0);
        for digit in &self.0 {
            let value = u64::from(*digit) << bits | carry;
            digits.push(value as u32);
            carry = value >> 32;
        }
        digits.push(carry as u32);
        Self::from_digits(digits)
    }
    /// Returns the quotient and the remainder, by Knuth's algorithm D, section 4.3.1.
    fn divided_by(&self, divisor: &Self) -> (Self, Self) {
        if let [digit] = divisor.0[..] {
            let (quotient, remainder) = self.divided_by_digit(digit);
            return (quotient, Self::from_digits(vec![remainder]));
        }
        if *self < *divisor {
            return (Self(Vec::new()), self.clone());
        }
        let shift = divisor.0.last().map_or(0, |top| top.leading_zeros() as usize);
        let (divisor, mut remainder) = (divisor.shifted(shift).0, self.shifted(shift).0);
        let length = divisor.len();
        let (top, second) = (u64::from(divisor[length - 1]), u64::from(divisor[length - 2]));
        remainder.push(0);
        let mut quotient = vec![0; remainder.len() - length];
        for position in (0..quotient.len()).rev() {
            let leading =
                u64::from(remainder[position + length]) << 32 | u64::from(remainder[position + length - 1]);
            let (mut guess, mut excess) = (leading / top, leading % top);
            while guess >> 32 != 0
                || guess * second > (excess << 32 | u64::from(remainder[position + length - 2]))
            {
                guess -= 1;
                excess += top;
                if excess >> 32 != 0 {
                    break;
                }
            }
            let (mut borrow, mut carry) = (0i64, 0);
            for (digit, divisor) in remainder[position..].iter_mut().zip(divisor.iter().chain([&0])) {
                let product = guess * u64::from(*divisor) + carry;
                carry = product >> 32;
                let value = i64::from(*digit) - (product & 0xffff_ffff) as i64 + borrow;
                *digit = value as u32;
                borrow = value >> 32;
            }
            if borrow < 0 {
                guess -= 1;
                let mut carry = 0;
                for (digit, divisor) in remainder[position..].iter_mut().zip(divisor.iter().chain([&0])) {
                    let value = u64::from(*digit) + u64::from(*divisor) + carry;
                    *digit = value as u32;
                    carry = value >> 32;
                }
            }
            quotient[position] = guess as u32;
        }
        // Shifts the remainder back.
        let remainder = Self::from_digits(remainder).divided_by_digit(1 << shift).0;
        (Self::from_digits(quotient), remainder)
    }
    fn modulo(&self, modulus: &Self) -> Self {
        self.divided_by(modulus).1
    }
    /// Returns the integer square root of this number, by Newton's method.
    fn square_root(&self) -> Self {
        let mut square_root = Self::from(1).shifted(self.bits().div_ceil(2));
        loop {
            let next_guess = (&square_root + &self.divided_by(&square_root).0).divided_by_digit(2).0;
            if next_guess >= square_root {
                return square_root;
            }
            square_root = next_guess;
        }
    }
    fn greatest_common_divisor(mut self, mut other: Self) -> Self {
        while !other.0.is_empty() {
            let remainder = self.modulo(&other);
            (self, other) = (other, remainder);
        }
        self
    }
}

impl PartialOrd for NaturalNumber {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NaturalNumber {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_length = self.0.len().cmp(&other.0.len());
        by_length.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }
}

impl Add for &NaturalNumber {
    type Output = NaturalNumber;
    fn add(self, other: &NaturalNumber) -> NaturalNumber {
        let (longer, shorter) = if self.0.len() < other.0.len() { (other, self) } else { (self, other) };
        let mut sum = Vec::with_capacity(longer.0.len() + 1);
        let mut carry = 0;
        for (position, digit) in longer.0.iter().enumerate() {
            let value = u64::from(*digit) + u64::from(shorter.0.get(position).copied().unwrap_or(0)) + carry;
            sum.push(value as u32);
            carry = value >> 32;
        }
        sum.push(carry as u32);
        NaturalNumber::from_digits(sum)
    }
}

impl Sub for &NaturalNumber {
    type Output = NaturalNumber;
    /// Subtracts `other`, which must not be larger than this number.
    fn sub(self, other: &NaturalNumber) -> NaturalNumber {
        let mut difference = Vec::with_capacity(self.0.len());
        let mut borrow = 0i64;
        for (position, digit) in self.0.iter().enumerate() {
            let value = i64::from(*digit) - i64::from(other.0.get(position).copied().unwrap_or(0)) + borrow;
            difference.push(value as u32);
            borrow = value >> 32;
        }
        NaturalNumber::from_digits(difference)
    }
}

impl Mul for &NaturalNumber {
    type Output = NaturalNumber;
    fn mul(self, other: &NaturalNumber) -> NaturalNumber {
        let mut product = vec![0; self.0.len() + other.0.len()];
        for (position, digit) in self.0.iter().enumerate() {
            let mut carry = 0;
            for (place, other) in product[position..].iter_mut().zip(other.0.iter().chain([&0])) {
                let value = u64::from(*digit) * u64::from(*other) + u64::from(*place) + carry;
                *place = value as u32;
                carry = value >> 32;
            }
        }
        NaturalNumber::from_digits(product)
    }
}

/// A relation modulo the number to factor: `x * x` equals -1 to the power of the first exponent, times each prime to
/// the power of its exponent.
struct CongruenceRelation {
    x: NaturalNumber,
    exponents: Vec<u32>,
}

/// Returns a proper factor of `number`, which must be composite, and the number of divisions that were needed. Ends the
/// program if it finds no factor.
fn factor(number: &NaturalNumber, primes: usize) -> (NaturalNumber, u64) {
    let base = base(number, primes);
    let mut divisions = 0;
    let square_root = number.square_root();
    // The variables have Knuth's names. In each step, `x * x` is `(-1)^step * q` modulo the number.
    let (mut p, mut q) = (square_root.clone(), number - &(&square_root * &square_root));
    let (mut before, mut x) = (NaturalNumber::from(1), square_root.clone());
    let mut relations: Vec<CongruenceRelation> = Vec::new();
    for step in 1..STEPS {
        if q.0.is_empty() {
            break;
        }
        if let Some(exponents) = smooth_factor_exponents(&q, step % 2, &base, &mut divisions) {
            relations.push(CongruenceRelation { x: x.clone(), exponents });
            if relations.len() > base.len() + 10 {
                if let Some(found_factor) = find_proper_factor(number, &base, &relations) {
                    return (found_factor, divisions);
                }
                relations.drain(..relations.len() / 2);
            }
        }
        let (a, _) = (&square_root + &p).divided_by(&q);
        let next_guess = (&(&a * &x) + &before).modulo(number);
        (before, x) = (x, next_guess);
        p = &(&a * &q) - &p;
        q = (number - &(&p * &p)).divided_by(&q).0;
    }
    eprintln!("corrupted, or the number is no product of two primes: no factor in {divisions} divisions");
    std::process::exit(1);
}

/// Maximum number of steps; numbers that can be factored in minutes need fewer steps.
const STEPS: u32 = 1 << 24;

/// Returns the smallest primes modulo which the number is a square; no other prime can divide a small residue.
fn base(number: &NaturalNumber, primes: usize) -> Vec<u32> {
    let prime = |n: &u32| {
        (2..)
            .take_while(|small_divisor| small_divisor * small_divisor <= *n)
            .all(|small_divisor| !n.is_multiple_of(small_divisor))
    };
    let square = |p: &u32| {
        let remainder = number.divided_by_digit(*p).1;
        (0..*p).any(|x| u64::from(x) * u64::from(x) % u64::from(*p) == u64::from(remainder))
    };
    (2..).filter(prime).filter(square).take(primes).collect()
}

/// Returns the exponents of -1 and of the primes in the factor base, or `None` if the number has other prime factors.
fn smooth_factor_exponents(
    number: &NaturalNumber,
    sign: u32,
    base: &[u32],
    divisions: &mut u64,
) -> Option<Vec<u32>> {
    let mut cofactor = number.clone();
    let mut exponents = Vec::new();
    for (position, prime) in base.iter().enumerate() {
        loop {
            *divisions += 1;
            let (quotient, remainder) = cofactor.divided_by_digit(*prime);
            if remainder != 0 || cofactor.0.is_empty() {
                break;
            }
            exponents.resize(base.len() + 1, 0);
            exponents[position + 1] += 1;
            cofactor = quotient;
        }
    }
    (cofactor.is_one() && !exponents.is_empty()).then(|| {
        exponents[0] = sign;
        exponents
    })
}

/// Returns a proper factor, computed from relations whose product has only even exponents; Gaussian
/// elimination modulo 2 finds these relations.
fn find_proper_factor(
    number: &NaturalNumber,
    base: &[u32],
    relations: &[CongruenceRelation],
) -> Option<NaturalNumber> {
    // Each row of the elimination has its exponents, and the relations that were multiplied.
    let mut rows: Vec<(Vec<bool>, Vec<bool>)> = (0..relations.len())
        .map(|i| {
            let odd_exponents = relations[i].exponents.iter().map(|exponent| exponent % 2 == 1).collect();
            (odd_exponents, (0..relations.len()).map(|j| i == j).collect())
        })
        .collect();
    let mut pivot_count = 0;
    for column in 0..=base.len() {
        let Some(pivot) = (pivot_count..rows.len()).find(|row| rows[*row].0[column]) else { continue };
        rows.swap(pivot_count, pivot);
        let (head, tail) = rows.split_at_mut(pivot_count + 1);
        for row in tail.iter_mut().filter(|row| row.0[column]) {
            row.0.iter_mut().zip(&head[pivot_count].0).for_each(|(a, b)| *a ^= b);
            row.1.iter_mut().zip(&head[pivot_count].1).for_each(|(a, b)| *a ^= b);
        }
        pivot_count += 1;
    }
    rows[pivot_count..].iter().find_map(|(_, combined)| {
        let (mut x, mut exponents) = (NaturalNumber::from(1), vec![0; base.len() + 1]);
        for (relation, _) in relations.iter().zip(combined).filter(|(_, combined)| **combined) {
            x = (&x * &relation.x).modulo(number);
            exponents.iter_mut().zip(&relation.exponents).for_each(|(sum, exponent)| *sum += exponent);
        }
        let mut y = NaturalNumber::from(1);
        for (prime, exponent) in base.iter().zip(&exponents[1..]) {
            for _ in 0..exponent / 2 {
                y = (&y * &NaturalNumber::from(u64::from(*prime))).modulo(number);
            }
        }
        let found_factor = (&x + &y).greatest_common_divisor(number.clone());
        (!found_factor.is_one() && found_factor != *number).then_some(found_factor)
    })
}
