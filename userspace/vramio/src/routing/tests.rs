// SPDX-License-Identifier: MIT OR Apache-2.0

//! Servers, and the ways that are taken on them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use vramio_abi::Reason;

use super::*;
use crate::pci::PciAddress;
use crate::topology::tests::{at, machine, TWO_SWITCHES};
use crate::topology::{Kind, Topology, Way};

/// A machine, and what is asked about it.
struct Server {
    topology: Topology,
    order: Order,
    overrides: Overrides,
    refused: BTreeMap<PciAddress, Reason>,
    /// GPUs that are named besides those of the tree.
    more: Vec<PciAddress>,
}

/// The way, and of each other one why it is not taken.
type Said = (Choice, Vec<(Choice, Reason)>);

impl Server {
    fn new(lines: &str) -> Self {
        Server {
            topology: machine(lines),
            order: Order::default(),
            overrides: Overrides::default(),
            refused: BTreeMap::new(),
            more: Vec::new(),
        }
    }

    fn linked(mut self, a: &str, b: &str) -> Self {
        self.topology.link(at(a), at(b));
        self
    }

    fn peers(mut self, a: &str, b: &str) -> Self {
        self.topology.add_peers(at(a), at(b));
        self
    }

    fn order(mut self, steps: &[Step]) -> Self {
        self.order = Order::new(steps.iter().copied()).expect("an order");
        self
    }

    fn laid_down(mut self, gpu: &str, drive: &str, via: Via) -> Self {
        let whose = |text| match text {
            "*" => Whose::Every,
            text => Whose::One(at(text)),
        };
        self.overrides.0.push(Override {
            gpu: whose(gpu),
            drive: whose(drive),
            via,
        });
        self
    }

    fn gpus(&self) -> Vec<PciAddress> {
        let own = self.topology.of_kind(Kind::Gpu).map(|gpu| gpu.address);
        own.chain(self.more.iter().copied()).collect()
    }

    fn decide(&self, gpu: &str, drives: &[&str]) -> Decision {
        let drives: Vec<PciAddress> = drives.iter().map(|drive| at(drive)).collect();
        decide(&Question {
            topology: &self.topology,
            gpu: at(gpu),
            drives: &drives,
            gpus: &self.gpus(),
            order: &self.order,
            overrides: &self.overrides,
            refused: &self.refused,
        })
    }

    fn says(&self, gpu: &str, drives: &[&str]) -> Said {
        let decision = self.decide(gpu, drives);
        assert_eq!(decision.taken.reason, Reason::None);
        let others = decision.others.iter();
        (
            decision.taken.choice,
            others.map(|way| (way.choice, way.reason)).collect(),
        )
    }
}

fn via(gpu: &str) -> Choice {
    Choice::Via {
        gpu: at(gpu),
        linked: false,
    }
}

fn by_link(gpu: &str) -> Choice {
    Choice::Via {
        gpu: at(gpu),
        linked: true,
    }
}

const SWITCH: Choice = Choice::Direct(Way::Switch);
const BRIDGE: Choice = Choice::Direct(Way::HostBridge);
const BLOCKED: Choice = Choice::Direct(Way::Blocked);

/// One switch: nothing is better, whatever the GPUs are linked by.
#[test]
fn below_one_switch_it_goes_direct() {
    let server = Server::new(TWO_SWITCHES).linked("0000:03:00.0", "0000:13:00.0");
    assert_eq!(
        server.says("0000:03:00.0", &["0000:04:00.0"]),
        (
            SWITCH,
            vec![
                (Choice::Host, Reason::NotPreferred),
                (by_link("0000:13:00.0"), Reason::HostBridge),
            ]
        )
    );
    let more =
        format!("{TWO_SWITCHES} 0000:02:02.0 0000:01:00.0 port\n 0000:05:00.0 0000:02:02.0 gpu");
    let server = Server::new(&more).linked("0000:03:00.0", "0000:05:00.0");
    let (way, others) = server.says("0000:03:00.0", &["0000:04:00.0"]);
    assert_eq!(way, SWITCH);
    assert!(others.contains(&(by_link("0000:05:00.0"), Reason::NotNearer)));
}

/// Switch trees on a processor that passes nothing: the other switch's GPU is on the way, if
/// the driver copies between the two.
#[test]
fn another_switch_is_reached_by_its_gpu() {
    let asked = |server: Server| server.says("0000:13:00.0", &["0000:04:00.0"]);
    assert_eq!(
        asked(Server::new(TWO_SWITCHES)),
        (
            Choice::Host,
            vec![
                (BLOCKED, Reason::HostBridge),
                (via("0000:03:00.0"), Reason::NoPeerAccess),
            ]
        )
    );
    for linked in [false, true] {
        let server = Server::new(TWO_SWITCHES);
        let (server, expected) = if linked {
            let server = server.linked("0000:13:00.0", "0000:03:00.0");
            (server, by_link("0000:03:00.0"))
        } else {
            let server = server.peers("0000:13:00.0", "0000:03:00.0");
            (server, via("0000:03:00.0"))
        };
        assert_eq!(
            asked(server),
            (
                expected,
                vec![
                    (Choice::Host, Reason::NotPreferred),
                    (BLOCKED, Reason::HostBridge),
                ]
            )
        );
    }
}

/// One socket whose host bridge passes it: a link goes before the host bridge, and that
/// before a copy by PCIe.
#[test]
fn a_host_bridge_comes_between_a_link_and_pcie() {
    let lines = TWO_SWITCHES.replace("desktop", "skylake");
    let near = "0000:03:00.0";
    let asked = |server: &Server| server.says("0000:13:00.0", &["0000:04:00.0"]);
    let server = Server::new(&lines).linked("0000:13:00.0", near);
    assert_eq!(
        asked(&server),
        (
            by_link(near),
            vec![
                (BRIDGE, Reason::NotPreferred),
                (Choice::Host, Reason::NotPreferred),
            ]
        )
    );
    let server = Server::new(&lines).peers("0000:13:00.0", near);
    assert_eq!(
        asked(&server),
        (
            BRIDGE,
            vec![
                (via(near), Reason::NotPreferred),
                (Choice::Host, Reason::NotPreferred),
            ]
        )
    );
    let server = server.order(&[Step::Peer, Step::HostBridge]);
    assert_eq!(asked(&server).0, via(near));
    // The kernel that runs refuses what the list says that it trusts.
    let mut server = Server::new(&lines).peers("0000:13:00.0", near);
    server
        .refused
        .insert(at("0000:13:00.0"), Reason::P2pDistance);
    assert_eq!(
        asked(&server),
        (
            via(near),
            vec![
                (Choice::Host, Reason::NotPreferred),
                (BLOCKED, Reason::P2pDistance),
            ]
        )
    );
    server.refused.insert(at(near), Reason::NoPgmap);
    assert_eq!(asked(&server).0, Choice::Host);
}

/// What the order leaves out is not taken; host memory is there in any case.
#[test]
fn an_order_leaves_ways_out() {
    let lines = TWO_SWITCHES.replace("desktop", "skylake");
    let near = "0000:03:00.0";
    let server = Server::new(&lines).linked("0000:13:00.0", near);
    let asked = |server: &Server| server.says("0000:13:00.0", &["0000:04:00.0"]);
    let off = Server {
        order: Order::off(),
        ..server
    };
    assert_eq!(
        asked(&off),
        (
            BRIDGE,
            vec![
                (Choice::Host, Reason::NotPreferred),
                (by_link(near), Reason::RoutingOff),
            ]
        )
    );
    let server = off.order(&[Step::Switch]);
    assert_eq!(
        asked(&server),
        (
            Choice::Host,
            vec![
                (by_link(near), Reason::RoutingOff),
                (BRIDGE, Reason::RoutingOff),
            ]
        )
    );
    let server = server.order(&[Step::Host, Step::Linked]);
    assert_eq!(
        asked(&server).1,
        [
            (by_link(near), Reason::NotPreferred),
            (BRIDGE, Reason::RoutingOff),
        ]
    );
}

/// Two sockets, a GPU and a drive on root ports of each. `HASWELL` passes traffic within a
/// socket only.
const TWO_SOCKETS: &str = "
    0000:00:00.0 -            haswell
    0000:00:01.0 -            port
    0000:00:02.0 -            port
    0000:01:00.0 0000:00:01.0 gpu
    0000:02:00.0 0000:00:02.0 nvme
    0000:80:00.0 -            haswell
    0000:80:01.0 -            port
    0000:81:00.0 0000:80:01.0 gpu
";

#[test]
fn the_other_socket_is_reached_by_the_gpu_of_this_one() {
    let asked = |server: &Server| server.says("0000:81:00.0", &["0000:02:00.0"]);
    let server = Server::new(TWO_SOCKETS).linked("0000:01:00.0", "0000:81:00.0");
    assert_eq!(asked(&server).0, by_link("0000:01:00.0"));
    // By a host bridge, which does no harm where there is nothing better.
    let decision = server.decide("0000:81:00.0", &["0000:02:00.0"]);
    let dma = decision.taken.dma.expect("a DMA");
    assert_eq!((dma.way, dma.distance), (Way::HostBridge, 4));
    // Where the processors pass it the GPU here is no nearer.
    let server = Server::new(&TWO_SOCKETS.replace("haswell", "skylake"))
        .linked("0000:01:00.0", "0000:81:00.0");
    assert_eq!(
        asked(&server),
        (
            BRIDGE,
            vec![
                (Choice::Host, Reason::NotPreferred),
                (by_link("0000:01:00.0"), Reason::NotNearer),
            ]
        )
    );
}

/// One port of the switch sends everything upward: its GPU is as far as any other.
#[test]
fn acs_on_one_port() {
    let more = format!(
        "{} 0000:02:02.0 0000:01:00.0 port\n 0000:05:00.0 0000:02:02.0 gpu",
        TWO_SWITCHES.replace(
            "0000:02:00.0 0000:01:00.0 port",
            "0000:02:00.0 0000:01:00.0 port acs"
        )
    );
    let server = Server::new(&more)
        .peers("0000:03:00.0", "0000:05:00.0")
        .peers("0000:13:00.0", "0000:05:00.0")
        .linked("0000:13:00.0", "0000:03:00.0");
    // The GPU behind the port.
    let (way, others) = server.says("0000:03:00.0", &["0000:04:00.0"]);
    assert_eq!(way, via("0000:05:00.0"));
    assert!(others.contains(&(BLOCKED, Reason::AcsRedirect)));
    // It is on nobody's way, though its link is the better one.
    let (way, others) = server.says("0000:13:00.0", &["0000:04:00.0"]);
    assert_eq!(way, via("0000:05:00.0"));
    assert!(others.contains(&(by_link("0000:03:00.0"), Reason::AcsRedirect)));
}

/// Without root's rights the ports can't be read: that is said, and does not decide.
#[test]
fn ports_that_cannot_be_read_are_named() {
    let lines = TWO_SWITCHES.replace(
        "0000:02:00.0 0000:01:00.0 port",
        "0000:02:00.0 0000:01:00.0 port untold",
    );
    let server = Server::new(&lines).peers("0000:13:00.0", "0000:03:00.0");
    let decision = server.decide("0000:13:00.0", &["0000:04:00.0"]);
    assert_eq!(decision.taken.choice, via("0000:03:00.0"));
    let dma = decision.taken.dma.expect("a DMA");
    assert_eq!(dma.untold, [at("0000:02:00.0")]);
}

/// A tree of switches: of two GPUs that are on the way the nearer one is taken, and of two
/// that are as near the first.
#[test]
fn the_nearest_of_many_is_taken() {
    let more = format!(
        "{TWO_SWITCHES}
        0000:02:02.0 0000:01:00.0 port
        0000:05:00.0 0000:02:02.0 port
        0000:06:00.0 0000:05:00.0 port
        0000:06:01.0 0000:05:00.0 port
        0000:07:00.0 0000:06:00.0 gpu
        0000:08:00.0 0000:06:01.0 gpu"
    );
    let all = ["0000:03:00.0", "0000:07:00.0", "0000:08:00.0"];
    let mut server = Server::new(&more);
    for gpu in all.iter().rev() {
        server = server.peers("0000:13:00.0", gpu);
    }
    let (way, others) = server.says("0000:13:00.0", &["0000:04:00.0"]);
    assert_eq!(way, via("0000:03:00.0"));
    assert_eq!(
        others,
        [
            (via("0000:07:00.0"), Reason::NotPreferred),
            (via("0000:08:00.0"), Reason::NotPreferred),
            (Choice::Host, Reason::NotPreferred),
            (BLOCKED, Reason::HostBridge),
        ]
    );
    // A link is worth more than two hops.
    let server = server.linked("0000:13:00.0", "0000:08:00.0");
    let (way, _) = server.says("0000:13:00.0", &["0000:04:00.0"]);
    assert_eq!(way, by_link("0000:08:00.0"));
}

/// All drives of a RAID count: one that a GPU does not reach is too many.
#[test]
fn a_stack_goes_by_its_worst_drive() {
    let more =
        format!("{TWO_SWITCHES} 0000:02:02.0 0000:01:00.0 port\n 0000:05:00.0 0000:02:02.0 nvme");
    let server = Server::new(&more).linked("0000:13:00.0", "0000:03:00.0");
    let near = &["0000:04:00.0", "0000:05:00.0"];
    assert_eq!(server.says("0000:13:00.0", near).0, by_link("0000:03:00.0"));
    let apart = &["0000:04:00.0", "0000:14:00.0"];
    assert_eq!(
        server.says("0000:13:00.0", apart),
        (
            Choice::Host,
            vec![
                (BLOCKED, Reason::HostBridge),
                (by_link("0000:03:00.0"), Reason::HostBridge),
            ]
        )
    );
    // A file on no drive that is known.
    let (way, others) = server.says("0000:13:00.0", &[]);
    assert_eq!(way, Choice::Host);
    assert!(others.contains(&(BLOCKED, Reason::LeafUnknown)));
}

/// What comes twice counts once; what was taken out is no way, and none leads to it.
#[test]
fn duplicates_and_what_is_gone() {
    let mut server = Server::new(TWO_SWITCHES).peers("0000:13:00.0", "0000:03:00.0");
    server.more = vec![at("0000:03:00.0"), at("0000:13:00.0")];
    let drives = ["0000:04:00.0", "0000:04:00.0"];
    let (way, others) = server.says("0000:13:00.0", &drives);
    assert_eq!((way, others.len()), (via("0000:03:00.0"), 2));

    let gone = TWO_SWITCHES.replace("0000:03:00.0 0000:02:00.0 gpu", "");
    let mut server = Server::new(&gone).peers("0000:13:00.0", "0000:03:00.0");
    server.more = vec![at("0000:03:00.0")];
    assert_eq!(
        server.says("0000:13:00.0", &["0000:04:00.0"]),
        (
            Choice::Host,
            vec![
                (BLOCKED, Reason::HostBridge),
                (via("0000:03:00.0"), Reason::NoDevice),
            ]
        )
    );
    let (way, others) = server.says("0000:03:00.0", &["0000:04:00.0"]);
    assert_eq!(way, Choice::Host);
    assert!(others.contains(&(BLOCKED, Reason::NoDevice)));
    // The drive, too.
    let (way, _) = server.says("0000:13:00.0", &["0000:09:00.0"]);
    assert_eq!(way, Choice::Host);
}

/// Root ports alone, and a processor that passes nothing: no GPU is on the way to another.
#[test]
fn without_switch_and_bridge_there_is_host_memory() {
    let server = Server::new(
        "0000:00:01.0 -            port
         0000:00:02.0 -            port
         0000:00:03.0 -            port
         0000:01:00.0 0000:00:01.0 gpu
         0000:02:00.0 0000:00:02.0 gpu
         0000:03:00.0 0000:00:03.0 nvme",
    )
    .linked("0000:01:00.0", "0000:02:00.0");
    let (way, others) = server.says("0000:01:00.0", &["0000:03:00.0"]);
    assert_eq!(way, Choice::Host);
    assert!(others.contains(&(by_link("0000:02:00.0"), Reason::HostBridge)));
    // AMD's pass it; then the other GPU is of no use.
    let mut description = server.topology.to_json();
    description["any_root_port"] = true.into();
    let server = Server {
        topology: Topology::from_json(&description.to_string()).expect("a description"),
        ..server
    };
    let (way, others) = server.says("0000:01:00.0", &["0000:03:00.0"]);
    assert_eq!(way, BRIDGE);
    assert!(others.contains(&(by_link("0000:02:00.0"), Reason::NotNearer)));
}

/// What somebody has laid down goes before the order, if it can be done.
#[test]
fn overrides_go_first() {
    let lines = TWO_SWITCHES.replace("desktop", "skylake");
    let (near, far, drive) = ("0000:03:00.0", "0000:13:00.0", "0000:04:00.0");
    let server = || Server::new(&lines).linked(near, far);
    let said = |server: &Server| server.says(far, &[drive]);

    let direct = server().laid_down(far, "*", Via::Direct);
    assert_eq!(
        said(&direct),
        (
            BRIDGE,
            vec![
                (by_link(near), Reason::RouteOverride),
                (Choice::Host, Reason::RouteOverride),
            ]
        )
    );
    assert_eq!(direct.decide(far, &[drive]).ignored, None);
    // The first that names the pair counts, and only the pair.
    let both = server()
        .laid_down(near, "*", Via::Direct)
        .laid_down("*", drive, Via::Host)
        .laid_down(far, drive, Via::Direct);
    assert_eq!(said(&both).0, Choice::Host);
    // All drives of the file have to be named.
    let one = server().laid_down(far, drive, Via::Host);
    assert_eq!(one.says(far, &[drive, "0000:14:00.0"]).0, BRIDGE);
    // What the order leaves out, or is of no use, can be wanted.
    let wanted = server()
        .order(&[Step::Switch])
        .laid_down("*", "*", Via::Gpu(at(near)));
    assert_eq!(said(&wanted).0, by_link(near));
    let useless = wanted.says(near, &["0000:14:00.0"]);
    assert_eq!(useless.0, Choice::Host);
    // What can't be done is said, and the order decides.
    let ignored = |server: Server, via, reason| {
        let server = server.laid_down("*", "*", via);
        let decision = server.decide(far, &[drive]);
        assert_eq!(decision.taken.choice, Choice::Host);
        assert_eq!(decision.ignored.map(|(_, why)| why), Some(reason));
    };
    ignored(
        Server::new(TWO_SWITCHES),
        Via::Gpu(at(near)),
        Reason::NoPeerAccess,
    );
    ignored(Server::new(TWO_SWITCHES), Via::Direct, Reason::HostBridge);
    ignored(
        Server::new(TWO_SWITCHES),
        Via::Gpu(at("0000:99:00.0")),
        Reason::NoGpu,
    );
}

#[test]
fn steps_have_names_and_come_once() {
    for step in Step::ALL {
        assert_eq!(step.name().parse(), Ok(step));
    }
    assert_eq!("gpu".parse::<Step>(), Err(NoStep));
    assert_eq!(Order::new([Step::Peer, Step::Peer]), Err(NoStep));
    let order = Order::new([Step::Peer]).expect("an order");
    assert_eq!(order.steps(), [Step::Peer, Step::Host]);
    assert_eq!(
        Order::default().to_string(),
        "switch, linked, host-bridge, peer, host"
    );
}

/// Some host bridges with two levels of ports each, and GPUs and drives anywhere below.
fn any_machine() -> impl Strategy<Value = (String, usize, usize)> {
    let first = prop_oneof![Just("desktop"), Just("haswell"), Just("skylake")];
    let acs = prop_oneof![4 => Just(""), 1 => Just("acs"), 1 => Just("untold")];
    let ports = prop::collection::vec((0..2u8, 0..6u8, acs), 1..8);
    let places = |most| prop::collection::vec(0..16usize, 1..most);
    (first, ports, places(5), places(4)).prop_map(|(first, ports, gpus, drives)| {
        let mut lines = String::new();
        for host in 0..2 {
            lines += &format!("0000:{:02x}:00.0 - {first}\n", host << 7);
        }
        let mut names: Vec<String> = Vec::new();
        for (number, (host, above, acs)) in ports.iter().enumerate() {
            let above = names.get(usize::from(*above)).cloned();
            // Ports on a root bus are on bus 0 or 80.
            let name = match &above {
                None => format!("0000:{:02x}:{:02x}.0", host << 7, number + 1),
                Some(_) => format!("0000:{:02x}:00.0", 0x10 + number),
            };
            let above = above.as_deref().unwrap_or("-");
            lines += &format!("{name} {above} port {acs}\n");
            names.push(name);
        }
        let mut place = |kind: &str, bus: usize, places: &[usize]| {
            for (number, place) in places.iter().enumerate() {
                let above = &names[place % names.len()];
                lines += &format!("0000:{:02x}:00.0 {above} {kind}\n", bus + number);
            }
        };
        place("gpu", 0x40, &gpus);
        place("nvme", 0x60, &drives);
        (lines, gpus.len(), drives.len())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever the machine: the way that is taken can be, each way is named once and has its
    /// reason, nobody's order of names matters, and what is laid down is done if it can be.
    #[test]
    fn a_decision_holds(
        (lines, gpus, drives) in any_machine(),
        pairs in prop::collection::vec((0..5usize, 0..5usize, any::<bool>()), 0..8),
        steps in prop::sample::subsequence(Step::ALL.to_vec(), 0..=5).prop_shuffle(),
        used in 1..4usize,
        wanted in 0..8usize,
    ) {
        let gpu = |number: usize| format!("0000:{:02x}:00.0", 0x40 + number % gpus);
        let mut server = Server::new(&lines).order(&steps);
        for (a, b, linked) in pairs {
            let (a, b) = (gpu(a), gpu(b));
            server = if linked { server.linked(&a, &b) } else { server.peers(&a, &b) };
        }
        let names: Vec<String> = (0..used.min(drives))
            .map(|number| format!("0000:{:02x}:00.0", 0x60 + number))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let target = gpu(0);
        let decision = server.decide(&target, &names);
        prop_assert_eq!(decision.taken.reason, Reason::None);
        prop_assert_eq!(decision.others.len(), gpus);
        prop_assert!(decision.others.iter().all(|way| way.reason != Reason::None));
        let step = decision.taken.choice.step().expect("one that can be taken");
        prop_assert!(server.order.steps().contains(&step));
        if let Choice::Via { gpu, .. } = decision.taken.choice {
            prop_assert!(server.topology.peers(gpu, at(&target)));
            let own = decision.others.iter().find(|way| matches!(way.choice, Choice::Direct(_)));
            let own = own.and_then(|way| way.dma.as_ref()).expect("its own DMA").way;
            for drive in &names {
                let way = server.topology.route(gpu, at(drive)).expect("there").way;
                prop_assert!(way != Way::Blocked && way < own);
            }
        }
        let choice = decision.taken.choice;

        server.more = server.gpus();
        server.more.reverse();
        let reversed: Vec<&str> = names.iter().rev().copied().collect();
        prop_assert_eq!(server.decide(&target, &reversed).taken.choice, choice);

        let way = decision.others.get(wanted).map_or(choice, |way| way.choice);
        let via = match way {
            Choice::Direct(_) => Via::Direct,
            Choice::Via { gpu, .. } => Via::Gpu(gpu),
            Choice::Host => Via::Host,
        };
        let laid = server.laid_down("*", "*", via).decide(&target, &names);
        match laid.ignored {
            None => prop_assert_eq!(laid.taken.choice, way),
            Some((_, reason)) => {
                prop_assert_eq!(laid.taken.choice, choice);
                prop_assert!(reason != Reason::None);
            }
        }
    }
}
