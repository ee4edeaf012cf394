// SPDX-License-Identifier: GPL-2.0

//! The differences between kernel versions.

use kernel::bindings;

/// `THIS_MODULE`.
pub(crate) const fn this_module() -> *mut bindings::module {
    #[cfg(kernel_7_3)]
    return kernel::module::this_module::<crate::LocalModule>().as_ptr();
    #[cfg(not(kernel_7_3))]
    return crate::THIS_MODULE.as_ptr();
}

/// What a PCI driver's probe gets with the matching table entry.
#[cfg(kernel_7_3)]
#[allow(dead_code)] // The second module's.
pub(crate) type IdInfo<'a> = Option<&'a ()>;
/// What a PCI driver's probe gets with the matching table entry.
#[cfg(not(kernel_7_3))]
#[allow(dead_code)] // The second module's.
pub(crate) type IdInfo<'a> = &'a ();

/// The value of a module parameter.
pub(crate) fn value<T: Copy>(parameter: &kernel::module_param::ModuleParamAccess<T>) -> T {
    #[cfg(kernel_7_3)]
    return parameter.value();
    #[cfg(not(kernel_7_3))]
    return *parameter.value();
}

/// A DMA in both directions.
#[cfg(kernel_7_3)]
pub(crate) const DMA_BIDIRECTIONAL: bindings::dma_data_direction =
    bindings::dma_data_direction::DMA_BIDIRECTIONAL;
/// A DMA in both directions.
#[cfg(not(kernel_7_3))]
pub(crate) const DMA_BIDIRECTIONAL: bindings::dma_data_direction =
    bindings::dma_data_direction_DMA_BIDIRECTIONAL;
