// SPDX-License-Identifier: MIT OR Apache-2.0

//! One engine for all that measures: which requests are made ([`order`]), what data they
//! carry ([`pattern`]), which way they go ([`way`]), who makes them ([`lane`]), for how long
//! ([`mod@slice`]), and what that took ([`sample`], [`account`]).

pub mod account;
pub mod lane;
pub mod order;
pub mod pattern;
pub mod sample;
pub mod sizes;
pub mod slice;
pub mod staging;
pub mod way;
