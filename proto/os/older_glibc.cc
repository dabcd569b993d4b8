// SPDX-License-Identifier: Apache-2.0
// Functions that libgcc and gRPC's static libraries require from the build machine's C library, and
// that glibc 2.34 lacks. Linked into each dynamic program and library of ivyrun, and hidden there,
// so that they run on every system with glibc 2.34 or later.
#include <dlfcn.h>
#include <link.h>
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

namespace {

[[maybe_unused]] bool holds(const dl_phdr_info& object, const ElfW(Phdr) & segment,
                            std::uintptr_t address) {
  const std::uintptr_t begin = object.dlpi_addr + segment.p_vaddr;
  return segment.p_type == PT_LOAD && address >= begin && address - begin < segment.p_memsz;
}

}  // namespace

// Defined by newer headers of glibc; libgcc was then built to use the function below.
#ifdef DLFO_STRUCT_HAS_EH_DBASE
namespace {

struct Search {
  std::uintptr_t address;
  dl_find_object* found;
};

// Finds, among the segments of an object, the one that holds the address and the one with its
// unwind table.
int scan(dl_phdr_info* object, std::size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  const ElfW(Phdr)* loaded = nullptr;
  const ElfW(Phdr)* table = nullptr;
  for (std::size_t i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (holds(*object, segment, search.address)) loaded = &segment;
    if (segment.p_type == PT_GNU_EH_FRAME) table = &segment;
  }
  if (loaded == nullptr || table == nullptr) return 0;
  const std::uintptr_t begin = object->dlpi_addr + loaded->p_vaddr;
  *search.found = {};
  search.found->dlfo_map_start = reinterpret_cast<void*>(begin);
  search.found->dlfo_map_end = reinterpret_cast<void*>(begin + loaded->p_memsz);
  search.found->dlfo_eh_frame = reinterpret_cast<void*>(object->dlpi_addr + table->p_vaddr);
  return 1;
}

}  // namespace

// Since glibc 2.35. libgcc calls it to find the unwind table of each frame of an exception.
extern "C" __attribute__((visibility("hidden"))) int _dl_find_object(
    void* address, dl_find_object* found) noexcept {
  Search search{reinterpret_cast<std::uintptr_t>(address), found};
  return dl_iterate_phdr(scan, &search) == 1 ? 0 : -1;
}
#endif

// Since glibc 2.36. c-ares calls it for the numbers of its queries.
extern "C" __attribute__((visibility("hidden"))) std::uint32_t arc4random() noexcept {
  std::uint32_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) std::abort();
  return number;
}
