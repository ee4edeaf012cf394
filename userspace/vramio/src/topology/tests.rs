// SPDX-License-Identifier: MIT OR Apache-2.0

//! Servers, as descriptions.

use vramio_abi::Reason;

use super::*;

/// One line a function: address, bridge above it or `-`, what it is, and its properties.
/// The host bridge goes by the bus of the highest bridge.
pub(crate) fn machine(lines: &str) -> Topology {
    let mut functions: BTreeMap<PciAddress, Function> = BTreeMap::new();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut words = line.split_whitespace();
        let mut word = || words.next().expect("a word");
        let address: PciAddress = word().parse().expect("an address");
        let above = match word() {
            "-" => None,
            text => Some(text.parse().expect("an address")),
        };
        let (vendor, device, class) = match word() {
            "port" => (0x1000, 0xc030, 0x06_0400),
            "gpu" => (0x10de, 0x2335, 0x03_0200),
            "nvme" => (0x144d, 0xa80a, 0x01_0802),
            "nic" => (0x15b3, 0x1021, 0x02_0700),
            "skylake" => (0x8086, 0x2020, 0x06_0000),
            "haswell" => (0x8086, 0x2f00, 0x06_0000),
            "desktop" => (0x8086, 0x4660, 0x06_0000),
            other => unreachable!("{other}"),
        };
        let mut function = Function {
            address,
            above,
            host: above.map_or_else(
                || format!("pci{:04x}:{:02x}", address.domain, address.bus),
                |above| functions[&above].host.clone(),
            ),
            vendor,
            device,
            class,
            redirect: Redirect::Off,
            node: None,
            driver: None,
            provider: false,
        };
        for property in words {
            match property {
                "acs" => function.redirect = Redirect::On,
                "untold" => function.redirect = Redirect::Unknown,
                other => unreachable!("{other}"),
            }
        }
        functions.insert(address, function);
    }
    Topology {
        functions,
        ..Topology::default()
    }
}

pub(crate) fn at(text: &str) -> PciAddress {
    text.parse().expect("an address")
}

fn route(topology: &Topology, provider: &str, client: &str) -> Route {
    topology
        .route(at(provider), at(client))
        .expect("both are there")
}

/// One socket that passes no peer-to-peer traffic, with two switches below two root ports.
/// GPU 3 and drive 4 are below one of them, GPU 13 and drive 14 below the other.
pub(crate) const TWO_SWITCHES: &str = "
    0000:00:00.0 -            desktop
    0000:00:01.0 -            port
    0000:00:02.0 -            port
    0000:01:00.0 0000:00:01.0 port
    0000:02:00.0 0000:01:00.0 port
    0000:02:01.0 0000:01:00.0 port
    0000:03:00.0 0000:02:00.0 gpu
    0000:04:00.0 0000:02:01.0 nvme
    0000:11:00.0 0000:00:02.0 port
    0000:12:00.0 0000:11:00.0 port
    0000:12:01.0 0000:11:00.0 port
    0000:13:00.0 0000:12:00.0 gpu
    0000:14:00.0 0000:12:01.0 nvme
";

#[test]
fn below_one_switch_it_goes_straight() {
    let topology = machine(TWO_SWITCHES);
    let route = route(&topology, "0000:03:00.0", "0000:04:00.0");
    assert_eq!((route.way, route.distance), (Way::Switch, 4));
    assert!(route.redirected_by.is_empty() && route.untold.is_empty());
}

#[test]
fn two_switches_need_a_host_bridge_that_is_trusted() {
    // The host bridge is not known at all.
    let mut topology = machine(&TWO_SWITCHES.replace("0000:00:00.0 -            desktop", ""));
    let across = |topology: &Topology| route(topology, "0000:03:00.0", "0000:14:00.0");
    assert_eq!(
        (across(&topology).way, across(&topology).distance),
        (Way::Blocked, 8)
    );
    assert_eq!(across(&topology).reason(), Reason::HostBridge);
    topology.any_root_port = true;
    assert_eq!(across(&topology).reason(), Reason::None);
    assert_eq!(across(&topology).way, Way::HostBridge);
    for (first, way) in [
        ("skylake", Way::HostBridge),
        ("haswell", Way::HostBridge),
        ("desktop", Way::Blocked),
    ] {
        let topology = machine(&TWO_SWITCHES.replace("desktop", first));
        assert_eq!(across(&topology).way, way, "{first}");
    }
}

#[test]
fn a_switch_below_a_switch_counts_its_links() {
    let topology = machine(&format!(
        "{TWO_SWITCHES}
        0000:05:00.0 0000:02:01.0 port
        0000:06:00.0 0000:05:00.0 port
        0000:07:00.0 0000:06:00.0 nvme"
    ));
    let route = route(&topology, "0000:03:00.0", "0000:07:00.0");
    assert_eq!((route.way, route.distance), (Way::Switch, 6));
}

#[test]
fn one_redirecting_port_takes_it_to_the_host_bridge() {
    // On the GPU's side, at the top, on the drive's side.
    for port in ["0000:02:00.0", "0000:01:00.0", "0000:02:01.0"] {
        let lines: String = TWO_SWITCHES
            .lines()
            .map(|line| {
                let acs = if line.trim().starts_with(port) {
                    " acs"
                } else {
                    ""
                };
                format!("{line}{acs}\n")
            })
            .collect();
        let found = route(&machine(&lines), "0000:03:00.0", "0000:04:00.0");
        assert_eq!((found.way, found.distance), (Way::Blocked, 4), "{port}");
        assert_eq!(found.reason(), Reason::AcsRedirect);
        assert_eq!(found.redirected_by, [at(port)]);
        let trusted = machine(&lines.replace("desktop", "skylake"));
        let found = route(&trusted, "0000:03:00.0", "0000:04:00.0");
        assert_eq!(
            (found.way, found.redirected_by),
            (Way::HostBridge, vec![at(port)])
        );
    }
}

#[test]
fn a_redirecting_port_off_the_way_does_nothing() {
    let lines = TWO_SWITCHES.replace("0000:00:01.0 -            port", "0000:00:01.0 - port acs");
    let found = route(&machine(&lines), "0000:03:00.0", "0000:04:00.0");
    assert_eq!((found.way, found.redirected_by), (Way::Switch, vec![]));
}

#[test]
fn what_cannot_be_read_is_named() {
    let lines = TWO_SWITCHES.replace(
        "0000:01:00.0 port\n    0000:02:01.0",
        "0000:01:00.0 port untold\n    0000:02:01.0",
    );
    let found = route(&machine(&lines), "0000:03:00.0", "0000:04:00.0");
    assert_eq!(
        (found.way, found.untold),
        (Way::Switch, vec![at("0000:02:00.0")])
    );
}

#[test]
fn two_sockets_need_two_host_bridges_that_are_trusted() {
    let sockets = |first: &str, second: &str| {
        machine(&format!(
            "0000:00:00.0 -            {first}
             0000:00:01.0 -            port
             0000:01:00.0 0000:00:01.0 gpu
             0000:80:00.0 -            {second}
             0000:80:01.0 -            port
             0000:81:00.0 0000:80:01.0 nvme"
        ))
    };
    for (first, second, way) in [
        ("skylake", "skylake", Way::HostBridge),
        // Trusted within itself only.
        ("haswell", "haswell", Way::Blocked),
        ("skylake", "haswell", Way::Blocked),
        ("desktop", "skylake", Way::Blocked),
    ] {
        let found = route(&sockets(first, second), "0000:01:00.0", "0000:81:00.0");
        assert_eq!((found.way, found.distance), (way, 4), "{first} {second}");
    }
}

#[test]
fn a_host_bridge_with_no_first_device_goes_by_its_root_port() {
    // A Skylake server has no device 0: its root port at 0x2030 tells what it is.
    let mut topology = machine(
        "0000:3a:02.0 -            port
         0000:3a:03.0 -            port
         0000:3b:00.0 0000:3a:02.0 gpu
         0000:3c:00.0 0000:3a:03.0 nvme",
    );
    assert_eq!(
        route(&topology, "0000:3b:00.0", "0000:3c:00.0").way,
        Way::Blocked
    );
    let first = topology
        .functions
        .get_mut(&at("0000:3a:02.0"))
        .expect("a port");
    (first.vendor, first.device) = (0x8086, 0x2030);
    assert_eq!(
        route(&topology, "0000:3b:00.0", "0000:3c:00.0").way,
        Way::HostBridge
    );
    // One that is no bridge and not device 0 tells nothing.
    let first = topology
        .functions
        .get_mut(&at("0000:3a:02.0"))
        .expect("a port");
    first.class = 0x08_8000;
    assert_eq!(
        route(&topology, "0000:3b:00.0", "0000:3c:00.0").way,
        Way::Blocked
    );
}

#[test]
fn one_function_and_one_device_are_their_own_switch() {
    let topology = machine(
        "0000:00:01.0 -            port
         0000:01:00.0 0000:00:01.0 gpu
         0000:01:00.1 0000:00:01.0 nvme",
    );
    let same = route(&topology, "0000:01:00.0", "0000:01:00.0");
    assert_eq!((same.way, same.distance), (Way::Switch, 0));
    let sibling = route(&topology, "0000:01:00.0", "0000:01:00.1");
    assert_eq!((sibling.way, sibling.distance), (Way::Switch, 2));
}

#[test]
fn a_gpu_that_was_taken_out_has_no_route() {
    let mut topology = machine(TWO_SWITCHES);
    topology.functions.remove(&at("0000:03:00.0"));
    let error = topology.route(at("0000:03:00.0"), at("0000:04:00.0"));
    assert_eq!(error, Err(NotThere(at("0000:03:00.0"))));
    let error = topology.route(at("0000:13:00.0"), at("0000:03:00.0"));
    assert_eq!(error, Err(NotThere(at("0000:03:00.0"))));
}

#[test]
fn links_have_no_direction() {
    let mut topology = machine(TWO_SWITCHES);
    let (a, b) = (at("0000:13:00.0"), at("0000:03:00.0"));
    assert!(!topology.linked(a, b));
    for _ in 0..2 {
        topology.link(a, b);
        topology.link(b, a);
        topology.link(a, a);
    }
    assert!(topology.linked(a, b) && topology.linked(b, a) && !topology.linked(a, a));
    assert_eq!(topology.links.len(), 1);
}

#[test]
fn json_comes_back() {
    let mut topology = machine(&format!("0000:00:00.0 - skylake\n{TWO_SWITCHES}"));
    topology.link(at("0000:03:00.0"), at("0000:13:00.0"));
    topology.add_peers(at("0000:13:00.0"), at("0000:03:00.0"));
    topology.any_root_port = true;
    for (index, function) in topology.functions.values_mut().enumerate() {
        function.redirect = [Redirect::Off, Redirect::On, Redirect::Unknown][index % 3];
        function.node = (index % 2 == 0).then_some(1);
        function.driver = (index % 2 == 1).then(|| "nvme".to_owned());
        function.provider = index % 3 == 0;
    }
    let text = topology.to_json().to_string();
    assert_eq!(Topology::from_json(&text).expect("a description"), topology);
}

#[test]
fn bad_descriptions_are_told_apart() {
    let function = |address: &str, above: &str, class: &str| {
        let above = match above {
            "" => String::new(),
            above => format!(r#""above": "{above}", "#),
        };
        format!(
            r#"{{"address": "{address}", {above}"host": "pci0000:00", "vendor": "0x10de",
                "device": "0x0001", "class": "{class}"}}"#
        )
    };
    let error = |functions: &[String], links: &str| {
        let text = format!(
            r#"{{"functions": [{}], "links": [{links}]}}"#,
            functions.join(",")
        );
        Topology::from_json(&text)
            .expect_err("a bad one")
            .to_string()
    };
    let port = function("0000:00:01.0", "", "0x060400");
    let gpu = function("0000:01:00.0", "0000:00:01.0", "0x030000");
    for (functions, links, says) in [
        (vec![port.clone(), port.clone()], "", "0000:00:01.0 twice"),
        (
            vec![gpu.clone()],
            "",
            "below 0000:00:01.0, which is no bridge",
        ),
        (
            vec![
                port.clone(),
                gpu.clone(),
                function("0000:02:00.0", "0000:01:00.0", "0x010802"),
            ],
            "",
            "below 0000:01:00.0, which is no bridge",
        ),
        (
            vec![
                function("0000:00:01.0", "0000:00:02.0", "0x060400"),
                function("0000:00:02.0", "0000:00:01.0", "0x060400"),
            ],
            "",
            "above itself",
        ),
        (
            vec![port.clone(), gpu.clone()],
            r#"["0000:01:00.0", "0000:00:01.0"]"#,
            "name two GPUs",
        ),
        (
            vec![port.clone(), gpu.clone()],
            r#"["0000:01:00.0", "0000:01:00.0"]"#,
            "name two GPUs",
        ),
        (
            vec![function("0:0", "", "0x030000")],
            "",
            "looks like 0000:03:00.0",
        ),
        (
            vec![function("0000:00:01.0", "", "030000")],
            "",
            "no number such as",
        ),
        (
            vec![function("0000:00:01.0", "", "0x1ffffffff")],
            "",
            "no number such as",
        ),
        (
            vec![r#"{"speed": 5}"#.to_owned()],
            "",
            "unknown field `speed`",
        ),
    ] {
        let error = error(&functions, links);
        assert!(error.contains(says), "{error} does not say {says}");
    }
}
