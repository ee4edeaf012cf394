// SPDX-License-Identifier: MIT OR Apache-2.0

//! Steps that register memory, and unregister it.

use super::dice::PAGE;
use super::expect;
use super::shape::{self, at, Arg, REGISTER, REGISTER_DMABUF, UNREGISTER};
use super::steps::{Answer, Steps};
use super::world::Registration;
use std::os::fd::AsRawFd;
use vramio_abi::Reason;

/// Reasons that come with a limit.
const LIMITED: [Reason; 4] = [
    Reason::RegistrationLimit,
    Reason::OpenBytes,
    Reason::UserRegistrations,
    Reason::UserBytes,
];

impl Steps {
    pub(super) fn register(&mut self, device: usize) -> Result<(), String> {
        let regions = &self.world.regions;
        let region = &regions[self.dice.below(regions.len() as u64) as usize];
        let pages = region.len / PAGE;
        let start = self.dice.below(pages);
        let count = 1 + self.dice.below(pages - start);
        let (addr, len) = match self.dice.below(8) {
            // All of it, all and more, host memory.
            0 => (region.addr, region.len),
            1 => (region.addr, region.len + PAGE),
            2 => (self.arena.start(), PAGE),
            _ => (region.addr + start * PAGE, count * PAGE),
        };
        let mut arg = Arg::new(&REGISTER)
            .with(at!(VramioRegister, addr), addr)
            .with(at!(VramioRegister, len), len);
        self.vary(&mut arg);
        let seen = arg.seen();
        let (reasons, found) = expect::register(&self.world, device, &seen);
        let answer = self.call(device, &arg, &reasons, false)?;
        let Some((region, start)) = found else {
            return Ok(());
        };
        let len = seen.get(at!(VramioRegister, len));
        let made = Registration {
            region,
            start,
            len,
            mapped: true,
            charged: len,
            revoked: None,
        };
        let members = [
            at!(VramioRegister, id),
            at!(VramioRegister, runs),
            at!(VramioRegister, provider_domain),
            at!(VramioRegister, provider_devid),
        ];
        if let Some(answer) = answer
            .as_ref()
            .filter(|a| !a.lost && a.out.get(shape::SIZE) >= 56)
        {
            let over = LIMITED.iter().any(|r| answer.out.reason() == *r as u64);
            let limit = answer.out.get(at!(VramioRegister, limit));
            if over != (limit != 0) && expect::malformed(&seen, 0).is_empty() {
                return Err(format!("{arg:?}: the limit is {limit}: {:?}", answer.out));
            }
        }
        self.registered(device, answer, made, members)
    }

    pub(super) fn register_dmabuf(&mut self, device: usize) -> Result<(), String> {
        let exported: Vec<usize> = (0..self.world.regions.len())
            .filter(|&index| !self.world.regions[index].dmabufs.is_empty())
            .collect();
        // Those that are good as often as all that are not.
        let index = match self.dice.one_in(2) {
            true => self.dice.pick(&exported[..3]),
            false => self.dice.pick(&exported),
        };
        let region = &self.world.regions[index.copied().unwrap_or(0)];
        let gpu = &self.world.gpus[region.gpu];
        let (offset, len) = match self.dice.below(3) {
            0 => (0, 0),
            _ => {
                let pages = region.len / PAGE;
                let offset = self.dice.below(pages);
                (offset * PAGE, (1 + self.dice.below(pages - offset)) * PAGE)
            }
        };
        let fd = region.dmabufs.first().map_or(-1, |d| d.fd.as_raw_fd());
        let mut arg = Arg::new(&REGISTER_DMABUF)
            .with(at!(VramioRegisterDmabuf, fd), fd as u64)
            .with(at!(VramioRegisterDmabuf, domain), gpu.domain)
            .with(at!(VramioRegisterDmabuf, devid), gpu.devid)
            .with(at!(VramioRegisterDmabuf, offset), offset)
            .with(at!(VramioRegisterDmabuf, len), len);
        self.vary(&mut arg);
        let (reasons, found) = expect::register_dmabuf(&self.world, device, &arg.seen());
        let answer = self.call(device, &arg, &reasons, false)?;
        let Some((region, start, len)) = found else {
            return Ok(());
        };
        let made = Registration {
            region,
            start,
            len,
            mapped: false,
            charged: self.world.regions[region].len,
            revoked: None,
        };
        let members = [
            at!(VramioRegisterDmabuf, id),
            at!(VramioRegisterDmabuf, runs),
            at!(VramioRegisterDmabuf, provider_domain),
            at!(VramioRegisterDmabuf, provider_devid),
        ];
        self.registered(device, answer, made, members)
    }

    /// Takes a registration over, if there is one now.
    fn registered(
        &mut self,
        device: usize,
        answer: Option<Answer>,
        made: Registration,
        members: [shape::Member; 4],
    ) -> Result<(), String> {
        let Some(answer) = answer.filter(|a| a.errno == 0) else {
            return Ok(());
        };
        let [id, runs, domain, devid] = members.map(|m| answer.out.get(m));
        let gpu = &self.world.gpus[self.world.regions[made.region].gpu];
        if (domain, devid) != (gpu.domain, gpu.devid) || runs == 0 || runs > made.len / PAGE {
            return Err(format!(
                "{runs} runs of {domain:#x} {devid:#x} for {made:?}"
            ));
        }
        let known = &mut self.world.devices[device].registrations;
        match known.insert(id as u32, made) {
            None if id != 0 => Ok(()),
            _ => Err(format!("the id {id} is 0 or in use")),
        }
    }

    pub(super) fn unregister(&mut self, device: usize) -> Result<(), String> {
        let id = self.some_id(device);
        let mut arg = Arg::new(&UNREGISTER).with(at!(VramioUnregister, id), id.into());
        self.vary(&mut arg);
        let seen = arg.seen();
        let mut reasons = expect::malformed(&seen, 0);
        let id = seen.get(at!(VramioUnregister, id)) as u32;
        if !self.world.devices[device].registrations.contains_key(&id) {
            reasons.push(Reason::NoRegistration);
        }
        let answer = self.call(device, &arg, &reasons, false)?;
        if answer.is_some_and(|a| a.errno == 0 || a.lost) && reasons.is_empty() {
            self.world.devices[device].registrations.remove(&id);
        }
        Ok(())
    }
}
