// SPDX-License-Identifier: MIT OR Apache-2.0

//! A GPU that the drive does not reach, and one below the drive's switch: requests on the
//! memory of the first go through that of the second.

use super::cuda::{all_compat, in_session, unbound, Setup};
use crate::client::{self, done, refused, Buffer, Client};
use crate::context::Context;
use crate::fleet::{self, Kind};
use crate::lane::Case;
use crate::transfer::Target;
use anyhow::{anyhow, ensure, Result};
use serde_json::Value;
use vramio_abi::{Certainty, Path, Reason};
use vramio_guest::client::{ClientOp, Done, Transfer};
use vramio_guest::pattern;
use vramio_guest::protocol::{Exit, Op, Output};
use vramio_qemu::filesystem::FileSystem;
use vramio_qemu::oracle::{account, first_difference, Flow, Place, POISON};
use vramio_qemu::remote::RemoteGpu;

const MIB: u64 = 1 << 20;
/// Some chunks of a bounce buffer, and a part of one.
const LEN: u64 = 11 * MIB;
/// The CUDA device below the drive's switch, and the one that is not.
const NEAR: usize = 0;
const FAR: usize = 1;
const COPY: &str = "cuMemcpyPeerAsync";

/// The cases.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&mut Context<'_>) -> Result<()>| {
        Case::new(format!("routing/{name}"), Kind::Prp, run)
    };
    vec![
        case("there-and-back", there_and_back),
        case("off", off),
        case("copy-fails", copy_fails),
        case("near-gpu-gone", near_gpu_gone),
        case("forecast", forecast),
        case("commands", commands),
    ]
}

/// A file on ext4, not whole blocks long, and memory of the far GPU.
struct Far {
    setup: Setup,
    client: Client,
    file: u32,
    buffer: Buffer,
    size: u64,
}

impl Far {
    fn new(context: &Context<'_>, client: Client) -> Result<Self> {
        let size = LEN - 300;
        let setup = Setup::new(context, Target::File(FileSystem::Ext4), "strict", size)?;
        let file = client.file(&setup.plan.path, true)?;
        let memory = client.alloc(FAR as u32, LEN)?;
        let buffer = client.part(&memory, 0..LEN)?;
        buffer.poison(context, FAR)?;
        Ok(Self {
            setup,
            client,
            file,
            buffer,
            size,
        })
    }

    fn request(&self, write: bool) -> Transfer {
        Transfer {
            write,
            file: self.file,
            ..self.setup.request(&self.buffer, 0, LEN)
        }
    }

    /// What the drive did with the file's data since the mark: to and from a GPU's memory, and
    /// everything else.
    fn flow(&self, context: &mut Context<'_>, mark: usize, gpu: usize) -> Result<Flow> {
        let extents = context.session.extents(&self.setup.plan.path)?;
        let place = Place::of_file(fleet::EXT4, &extents);
        let bar = context.vm.bars()[gpu].clone();
        Ok(account(context.vm.commands(mark)?, &place, &bar).data)
    }

    /// The file's content is in the far GPU's memory.
    fn arrived(&self, context: &Context<'_>) -> Result<()> {
        let content = self.setup.plan.content(0, self.size);
        self.buffer.expect(context, FAR, 0, &content)?;
        let rest = self.buffer.read(context, FAR, self.size..LEN)?;
        ensure!(
            rest.iter().all(|byte| [0, POISON].contains(byte)),
            "bytes behind the end of the file"
        );
        Ok(())
    }
}

/// The PCI function of a test GPU.
fn address(context: &Context<'_>, node: &str) -> Result<String> {
    let gpu = RemoteGpu::open_node(&context.session, node)?;
    let info = gpu.info()?.ok(|_| 0)?;
    gpu.close()?;
    Ok(crate::rest::name(info.domain, info.devid))
}

/// All of it went by the near GPU, and it says why.
fn routed(context: &Context<'_>, done: &Done, bytes: u64) -> Result<()> {
    let address = address(context, "/dev/mockgpu0")?;
    ensure!(
        done.bytes == bytes
            && done.path == Path::Routed.name()
            && done.via.as_ref() == Some(&address)
            && done.reason == Reason::HostBridge.name()
            && done.certainty == Certainty::Consistent.name()
            && done.moved == [(Path::Routed.name().to_owned(), bytes)].into()
            && (done.uncovered, done.error) == (0, 0),
        "{done:?}, expected {bytes} bytes via {address}"
    );
    Ok(())
}

/// A file comes into the far GPU's memory, and other data of that into the file. The drive
/// moves every byte to and from the near GPU's memory and nothing else, and the counters know.
fn there_and_back(context: &mut Context<'_>) -> Result<()> {
    let client = Client::routing(&context.session, "strict")?;
    let far = Far::new(context, client)?;
    let mark = context.vm.mark()?;
    let read = done(far.client.transfer(far.request(false))?)?;
    routed(context, &read, far.size)?;
    let expected = Flow {
        into_bar: far.size.next_multiple_of(client::BLOCK),
        ..Flow::default()
    };
    let flow = far.flow(context, mark, NEAR)?;
    ensure!(flow == expected, "{flow:?}, expected {expected:?}");
    far.arrived(context)?;

    let content = pattern::bytes(303, 0, LEN as usize);
    far.buffer.write(context, FAR, 0, &content)?;
    let mark = context.vm.mark()?;
    let written = done(far.client.transfer(far.request(true))?)?;
    routed(context, &written, LEN)?;
    context.session.sync()?;
    let expected = Flow {
        from_bar: LEN,
        ..Flow::default()
    };
    let flow = far.flow(context, mark, NEAR)?;
    ensure!(flow == expected, "{flow:?}, expected {expected:?}");
    let extents = context.session.extents(&far.setup.plan.path)?;
    let found = far.setup.volume.read_extents(context, 0, &extents, LEN)?;
    if let Some(difference) = first_difference(&found, &content) {
        return Err(anyhow!("the disk: {difference}"));
    }

    let stats = far.client.stats()?;
    let paths = [(Path::Routed.name().to_owned(), far.size + LEN)];
    ensure!(
        (stats.requests, stats.failed) == (2, 0) && stats.paths == paths.into(),
        "{stats:?}"
    );
    ensure!(far.client.counted(Reason::HostBridge)? == 2, "not counted");
    // The near GPU's own memory goes direct as before.
    let memory = far.client.alloc(NEAR as u32, MIB)?;
    let near = far.client.part(&memory, 0..MIB)?;
    let request = Transfer {
        buffer: near.number,
        len: MIB,
        ..far.request(false)
    };
    super::cuda::all_direct(&done(far.client.transfer(request)?)?, MIB)?;
    near.expect(context, NEAR, 0, &content[..MIB as usize])
}

/// With routing off it is refused, or goes through host memory, and is counted.
fn off(context: &mut Context<'_>) -> Result<()> {
    for policy in ["strict", "allow"] {
        let client = Client::new(&context.session, policy)?;
        let far = Far::new(context, client)?;
        let mark = context.vm.mark()?;
        let answer = far.client.transfer(far.request(false))?;
        let flow = far.flow(context, mark, NEAR)?;
        if policy == "strict" {
            refused(&answer, Reason::HostBridge)?;
            ensure!(flow == Flow::default(), "a refused request moved {flow:?}");
            far.buffer
                .expect(context, FAR, 0, &vec![POISON; LEN as usize])?;
        } else {
            all_compat(&done(answer)?, far.size, Reason::HostBridge)?;
            ensure!(flow.into_bar == 0 && flow.into_ram >= far.size, "{flow:?}");
            far.arrived(context)?;
        }
        ensure!(far.client.counted(Reason::HostBridge)? == 1, "not counted");
        ensure!(
            !far.client.stats()?.paths.contains_key(Path::Routed.name()),
            "routed"
        );
    }
    Ok(())
}

/// A copy between the GPUs fails: the rest goes through host memory where it may, else the
/// request is refused; the next one is routed again.
fn copy_fails(context: &mut Context<'_>) -> Result<()> {
    /// `CUDA_ERROR_UNKNOWN`.
    const UNKNOWN: u32 = 999;
    for policy in ["strict", "allow"] {
        let client = Client::routing(&context.session, policy)?;
        let far = Far::new(context, client)?;
        let name = COPY.to_owned();
        far.client.tell(ClientOp::Fail {
            name,
            code: UNKNOWN,
        })?;
        let answer = far.client.transfer(far.request(false))?;
        if policy == "strict" {
            refused(&answer, Reason::PeerCopy)?;
        } else {
            all_compat(&done(answer)?, far.size, Reason::PeerCopy)?;
            far.arrived(context)?;
        }
        ensure!(far.client.counted(Reason::PeerCopy)? == 1, "not counted");
        far.buffer.poison(context, FAR)?;
        context.session.drop_caches()?;
        let mark = context.vm.mark()?;
        routed(
            context,
            &done(far.client.transfer(far.request(false))?)?,
            far.size,
        )?;
        let flow = far.flow(context, mark, NEAR)?;
        ensure!(flow.into_ram == 0, "{flow:?}");
        far.arrived(context)?;
        let name = COPY.to_owned();
        let copies: u64 = far
            .client
            .session()
            .call(Op::Client(ClientOp::Calls { name }))?;
        ensure!(copies > 2, "{copies} copies");
    }
    crate::rest::at_rest(context, &[])
}

/// The near GPU's driver goes: what is under way is told so, and from then on it is as if the
/// GPU were not there; a new program is routed when it is back.
fn near_gpu_gone(context: &mut Context<'_>) -> Result<()> {
    for policy in ["strict", "allow"] {
        in_session(context, |context, session| {
            let far = Far::new(context, Client::routing(session, policy)?)?;
            let request = far.request(false);
            routed(context, &done(far.client.transfer(request)?)?, far.size)?;
            unbound(context, |context| {
                let result = [Reason::ProviderGone, Reason::HostBridge]
                    .into_iter()
                    .try_for_each(|reason| {
                        far.buffer.poison(context, FAR)?;
                        let before = far.client.counted(reason)?;
                        let answer = far.client.transfer(request)?;
                        if policy == "strict" {
                            refused(&answer, reason)?;
                        } else {
                            all_compat(&done(answer)?, far.size, reason)?;
                            far.arrived(context)?;
                        }
                        let counted = far.client.counted(reason)?;
                        ensure!(counted == before + 1, "{} is not counted", reason.name());
                        Ok(())
                    });
                session.end()?;
                result
            })
        })?;
    }
    let far = Far::new(context, Client::routing(&context.session, "strict")?)?;
    let done = done(far.client.transfer(far.request(false))?)?;
    routed(context, &done, far.size)?;
    far.arrived(context)
}

/// What the command says beforehand is what requests do.
fn forecast(context: &mut Context<'_>) -> Result<()> {
    let (near, far) = (
        address(context, "/dev/mockgpu0")?,
        address(context, "/dev/mockgpu1")?,
    );
    let disk = context.vm.device(fleet::RAW)?;
    let ask = |switch: &str, args: &[&str]| -> Result<Value> {
        let routing = format!("VRAMIO_ROUTING_ENABLED={switch}");
        let mut command = vec![
            "env",
            "LD_LIBRARY_PATH=/usr/lib/mock-cuda",
            &routing,
            "vramio",
        ];
        command.extend(args);
        let ended = context.session.exec(&command)?;
        Ok(serde_json::from_str(&ended.stdout)?)
    };
    for (switch, kind) in [("true", "peer"), ("false", "host")] {
        let via = |way: &Value| way["takes"]["via"].as_str() == Some(&near);
        let all = ask(switch, &["check", "-t", "--json"])?;
        let pairs = all["routing"]["pairs"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let of = |gpu: &str| pairs.iter().find(|pair| pair["gpu"] == gpu).cloned();
        let direct = of(&near).ok_or_else(|| anyhow!("no {near} in {all}"))?;
        ensure!(direct["takes"]["kind"] == "switch", "{direct}");
        let file = ask(switch, &["explain", &disk, "--gpu", "1", "--json"])?;
        for way in [of(&far).unwrap_or_default(), file["routing"].clone()] {
            ensure!(
                way["takes"]["kind"] == kind && via(&way) == (kind == "peer"),
                "{switch}: {way}"
            );
            let others = way["others"].as_array().cloned().unwrap_or_default();
            let reason = |reason: Reason| others.iter().any(|way| way["reason"] == reason.name());
            ensure!(reason(Reason::HostBridge), "{way}");
            ensure!(reason(Reason::RoutingOff) == (kind == "host"), "{way}");
        }
    }
    Ok(())
}

/// Runs a program after this with the test GPUs' nodes under other names, so that it finds CUDA
/// devices alone, the far one first.
const CUDA_ALONE: [&str; 7] = [
    "busybox",
    "unshare",
    "-m",
    "busybox",
    "sh",
    "-c",
    "for n in 0 1; do
         : > /tmp/cuda$n && mount --bind /dev/mockgpu$n /tmp/cuda$n &&
         mount --bind /dev/null /dev/mockgpu$n || exit 9
     done
     export LD_LIBRARY_PATH=/usr/lib/mock-cuda MOCK_CUDA_NODES=/tmp/cuda1:/tmp/cuda0
     exec \"$0\" \"$@\"",
];

/// `check FILE`, `explain` and `gdscheck -f` say of the far GPU's memory what a copy into it then
/// does, and their exit statuses are those of what is direct; with routing off all refuse it.
fn commands(context: &mut Context<'_>) -> Result<()> {
    let near = address(context, "/dev/mockgpu0")?;
    let disk = context.vm.device(fleet::RAW)?;
    let run = |switch: &str, args: &[&str]| -> Result<Output> {
        let routing = format!("VRAMIO_ROUTING_ENABLED={switch}");
        let command = [&CUDA_ALONE[..], &["env", &routing], args].concat();
        Ok(context.session.exec(&command)?)
    };
    let gdscheck = "/tmp/gdscheck";
    let link = ["ln", "-sf", "/usr/bin/vramio", gdscheck];
    context.session.run(&link)?;
    let bridge = Reason::HostBridge.name();
    for (switch, verdict, via, status) in [
        ("true", "routed", Some(near.as_str()), 0),
        ("false", "refused", None, 2),
    ] {
        let check = run(switch, &["vramio", "check", &disk, "--json"])?;
        let explain = run(switch, &["vramio", "explain", &disk, "--json"])?;
        let said: Value = serde_json::from_str(&check.stdout)?;
        let explained: Value = serde_json::from_str(&explain.stdout)?;
        for (output, said) in [(&check, &said), (&explain, &explained["check"])] {
            ensure!(
                output.exit == Exit::Code(status)
                    && said["verdict"] == verdict
                    && said["via"].as_str() == via
                    && said["reason"]["reason"] == bridge
                    && said["gpu"]["kind"] == "cuda",
                "{switch}: {output:?}"
            );
        }
        ensure!(
            explained["routing"]["takes"]["via"].as_str() == via,
            "{explained}"
        );
        let text = run(switch, &["vramio", "check", &disk])?.stdout;
        let line = format!("routed via: {near}\n");
        ensure!(text.contains(&line) == via.is_some(), "{text}");

        let copy = run(
            switch,
            &["vramio", "cp", &disk, "gpu:0", "--size", "4M", "--json"],
        )?;
        let copied: Value = serde_json::from_str(&copy.stdout).unwrap_or_default();
        let went = match via {
            Some(via) => {
                copy.exit == Exit::Code(0)
                    && copied["via"][0] == via
                    && copied["paths"][0]["path"] == Path::Routed.name()
            }
            None => copy.exit == Exit::Code(1) && copy.stderr.contains(bridge),
        };
        ensure!(went, "{switch}: {copy:?}");

        let gdscheck = run(switch, &[gdscheck, "-f", &disk])?;
        let way = via.map_or("compat".to_owned(), |gpu| format!("routed via {gpu}"));
        let line = format!(" GDS register success: {disk}: {way} ({bridge}: ");
        ensure!(
            gdscheck.exit == Exit::Code(0) && gdscheck.stdout.starts_with(&line),
            "{switch}: {gdscheck:?}"
        );
    }
    Ok(())
}
