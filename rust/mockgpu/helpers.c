// SPDX-License-Identifier: GPL-2.0
/* Static inlines and macros that Rust cannot call, for the test GPU's driver. */
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/pci.h>

/*
 * Makes every page of a fresh pci_alloc_p2pmem() chunk a counted page with one
 * reference, as drivers/pci/p2pdma.c does for its own mappings: the last
 * put_page() gives the page back to the pool. The chunk's single reference on the
 * pgmap is replaced by one for each page.
 */
void mockgpu_count_pages(void *kaddr, size_t pages)
{
	struct percpu_ref *ref = &page_pgmap(virt_to_page(kaddr))->ref;
	size_t i;

	for (i = 0; i < pages; i++) {
		struct page *page = virt_to_page(kaddr + i * PAGE_SIZE);

		VM_WARN_ON_ONCE_PAGE(page_ref_count(page), page);
		percpu_ref_get(ref);
		set_page_count(page, 1);
	}
	percpu_ref_put(ref);
}

void mockgpu_put_pages(void *kaddr, size_t pages)
{
	size_t i;

	for (i = 0; i < pages; i++)
		put_page(virt_to_page(kaddr + i * PAGE_SIZE));
}

struct page *mockgpu_page(void *kaddr)
{
	return virt_to_page(kaddr);
}

phys_addr_t mockgpu_phys(void *kaddr)
{
	return page_to_phys(virt_to_page(kaddr));
}

u32 mockgpu_pci_domain(struct pci_dev *pdev)
{
	return pci_domain_nr(pdev->bus);
}
