// SPDX-License-Identifier: MIT OR Apache-2.0

//! The table of handles under every order of its threads.

mod sync {
    pub(crate) use loom::sync::{Arc, RwLock};
    pub(crate) use std::sync::PoisonError;
}

#[path = "../src/table.rs"]
mod table;

use loom::thread;
use sync::Arc;
use table::Table;

/// A number that was taken back gives nothing, or what it was for, but never another
/// value, though its place is used again.
#[test]
fn a_number_never_means_another_value() {
    loom::model(|| {
        let table = Arc::new(Table::new());
        let number = table.insert(Arc::new(1));
        let user = {
            let table = table.clone();
            thread::spawn(move || table.get(number).map(|value| *value))
        };
        let owner = {
            let table = table.clone();
            thread::spawn(move || {
                assert_eq!(table.remove(number).map(|value| *value), Some(1));
                table.insert(Arc::new(2))
            })
        };
        let seen = user.join().expect("no panic");
        assert!(seen.is_none() || seen == Some(1), "{seen:?}");
        let other = owner.join().expect("no panic");
        assert_ne!(other, number);
        assert!(table.get(number).is_none());
        assert_eq!(table.get(other).map(|value| *value), Some(2));
    });
}

/// Of two that take a number back, one gets the value.
#[test]
fn a_value_is_taken_back_once() {
    loom::model(|| {
        let table = Arc::new(Table::new());
        let number = table.insert(Arc::new(1));
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let table = table.clone();
                thread::spawn(move || table.remove(number).is_some())
            })
            .collect();
        let taken: Vec<bool> = takers
            .into_iter()
            .map(|taker| taker.join().expect("no panic"))
            .collect();
        assert_ne!(taken[0], taken[1]);
        // And its place is free once.
        let (one, other) = (table.insert(Arc::new(2)), table.insert(Arc::new(3)));
        assert_ne!(one, other);
    });
}
