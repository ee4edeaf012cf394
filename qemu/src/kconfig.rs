// SPDX-License-Identifier: MIT OR Apache-2.0

//! Is the local kernel configuration still the stock image's?

use std::collections::BTreeMap;

/// The value of `option`, with its quotes.
pub fn value<'a>(config: &'a str, option: &str) -> Option<&'a str> {
    config
        .lines()
        .find_map(|line| line.strip_prefix(option)?.strip_prefix('='))
}

/// The options that differ between two configurations and that matter to
/// modules.
///
/// What we set ourselves does not count, nor do the tools' versions: the
/// compiler's is checked by itself, and a tool too old or missing turns options
/// off, which is seen here.
pub fn differences(stock: &str, local: &str) -> Vec<String> {
    let (stock, local) = (options(stock), options(local));
    let names = stock.keys().chain(local.keys());
    let mut different: Vec<String> = names
        .filter(|name| stock.get(*name) != local.get(*name) && !is_ours(name))
        .map(|name| (*name).to_owned())
        .collect();
    different.sort();
    different.dedup();
    different
}

/// The lines of the fragment `wanted` that do not hold in `config`.
pub fn lost<'a>(wanted: &'a str, config: &str) -> Vec<&'a str> {
    let wanted = wanted.lines().filter(|line| line.contains("CONFIG_"));
    let holds = |line: &str| {
        config.lines().any(|found| found == line)
            || line
                .strip_suffix(" is not set")
                .and_then(|rest| rest.strip_prefix("# "))
                .is_some_and(|option| value(config, option).is_none())
    };
    wanted.filter(|line| !holds(line)).collect()
}

fn options(config: &str) -> BTreeMap<&str, &str> {
    config
        .lines()
        .filter_map(|line| line.split_once('='))
        .filter(|(name, _)| name.starts_with("CONFIG_"))
        .collect()
}

fn is_ours(name: &str) -> bool {
    name == "CONFIG_LOCALVERSION"
        || name.starts_with("CONFIG_MODULE_SIG_KEY")
        || name.starts_with("CONFIG_SYSTEM_TRUSTED_KEYS")
        || name.starts_with("CONFIG_OPENSSL_SUPPORTS_")
        || name.ends_with("_VERSION_TEXT")
        || name.ends_with("_VERSION")
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOCK: &str = "# CONFIG_X is not set\nCONFIG_RUST=y\nCONFIG_LOCALVERSION=\"\"\nCONFIG_PAHOLE_VERSION=130\nCONFIG_OPENSSL_SUPPORTS_ML_DSA=y\n";

    #[test]
    fn what_we_set_is_no_difference() {
        let local =
            "CONFIG_RUST=y\nCONFIG_LOCALVERSION=\"+deb13-amd64\"\nCONFIG_PAHOLE_VERSION=131\n";
        assert_eq!(differences(STOCK, local), Vec::<String>::new());
    }

    #[test]
    fn a_lost_or_changed_option_is_a_difference() {
        let local = "CONFIG_X=m\nCONFIG_LOCALVERSION=\"\"\n";
        assert_eq!(differences(STOCK, local), ["CONFIG_RUST", "CONFIG_X"]);
    }

    #[test]
    fn what_a_configuration_does_not_have_is_lost() {
        let wanted = "# a remark\nCONFIG_RUST=y\n# CONFIG_X is not set\n# CONFIG_Y is not set\n";
        assert!(lost(wanted, STOCK).is_empty());
        let other = "CONFIG_RUST=m\nCONFIG_Y=y\n";
        let expected = ["CONFIG_RUST=y", "# CONFIG_Y is not set"];
        assert_eq!(lost(wanted, other), expected);
    }

    #[test]
    fn a_value_is_found_by_its_whole_name() {
        assert_eq!(
            value("CONFIG_RUSTC=1\nCONFIG_RUST=y\n", "CONFIG_RUST"),
            Some("y")
        );
        assert_eq!(value(STOCK, "CONFIG_X"), None);
    }
}
