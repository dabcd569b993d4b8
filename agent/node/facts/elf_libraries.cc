// SPDX-License-Identifier: Apache-2.0
#include "agent/node/facts/elf_libraries.h"

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>

#include "proto/os/descriptor.h"

namespace ivy {
namespace {

// More than any linker writes; a broken file may contain any number.
constexpr std::size_t kMaxSegments = 256;
constexpr std::size_t kMaxEntries = 4096;
constexpr std::size_t kMaxLibraries = 256;
constexpr std::size_t kMaxNameBytes = 256;
constexpr std::size_t kMaxConstants = 32u << 20;

class OpenFile {
 public:
  explicit OpenFile(const std::string& path)
      : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  // Reads up to `bytes` bytes and returns how many there were.
  std::size_t read_at(std::uint64_t offset, void* to, std::size_t bytes) const {
    const ssize_t count = !fd_ ? -1 : pread(fd_.get(), to, bytes, static_cast<off_t>(offset));
    return count < 0 ? 0 : static_cast<std::size_t>(count);
  }
  // Drops an incomplete last element.
  template <class T>
  std::vector<T> table_at(std::uint64_t offset, std::size_t count) const {
    std::vector<T> table(count);
    table.resize(read_at(offset, table.data(), count * sizeof(T)) / sizeof(T));
    return table;
  }

 private:
  const Descriptor fd_;
};

bool is_native(const Elf64_Ehdr& header) {
  constexpr std::uint16_t kOne = 1;
  std::uint8_t first = 0;
  std::memcpy(&first, &kOne, 1);
  return std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
         header.e_ident[EI_CLASS] == ELFCLASS64 &&
         header.e_ident[EI_DATA] == (first == 1 ? ELFDATA2LSB : ELFDATA2MSB) &&
         header.e_phentsize == sizeof(Elf64_Phdr);
}

// Returns the file offset of the bytes that the program will see at `address`.
std::optional<std::uint64_t> file_offset(const std::vector<Elf64_Phdr>& segments,
                                         std::uint64_t address) {
  for (const Elf64_Phdr& segment : segments)
    if (segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
        address - segment.p_vaddr < segment.p_filesz)
      return segment.p_offset + (address - segment.p_vaddr);
  return std::nullopt;
}

// Returns nothing for other kinds of files.
std::vector<Elf64_Phdr> segments_of(const OpenFile& file) {
  Elf64_Ehdr header{};
  if (file.read_at(0, &header, sizeof header) != sizeof header || !is_native(header)) return {};
  return file.table_at<Elf64_Phdr>(header.e_phoff,
                                   std::min<std::size_t>(header.e_phnum, kMaxSegments));
}

std::string name_at(const OpenFile& file, std::uint64_t offset) {
  char name[kMaxNameBytes];
  const std::size_t count = file.read_at(offset, name, sizeof name);
  const std::size_t length = strnlen(name, count);
  return length < count ? std::string(name, length) : "";
}

}  // namespace

std::vector<std::string> needed_libraries(const std::string& path) {
  const OpenFile file(path);
  const std::vector<Elf64_Phdr> segments = segments_of(file);
  const auto dynamic =
      std::find_if(segments.begin(), segments.end(),
                   [](const Elf64_Phdr& segment) { return segment.p_type == PT_DYNAMIC; });
  if (dynamic == segments.end()) return {};
  const auto entries = file.table_at<Elf64_Dyn>(
      dynamic->p_offset, std::min<std::size_t>(dynamic->p_filesz / sizeof(Elf64_Dyn), kMaxEntries));
  std::vector<std::uint64_t> names;
  std::optional<std::uint64_t> texts;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag == DT_NULL) break;
    if (entry.d_tag == DT_NEEDED && names.size() < kMaxLibraries) names.push_back(entry.d_un.d_val);
    if (entry.d_tag == DT_STRTAB) texts = file_offset(segments, entry.d_un.d_ptr);
  }
  std::vector<std::string> libraries;
  if (!texts) return libraries;
  for (const std::uint64_t name : names) {
    std::string library = name_at(file, *texts + name);
    if (!library.empty()) libraries.push_back(std::move(library));
  }
  return libraries;
}

std::string file_constants(const std::string& path) {
  const OpenFile file(path);
  std::string constants;
  for (const Elf64_Phdr& segment : segments_of(file)) {
    if (segment.p_type != PT_LOAD || (segment.p_flags & (PF_R | PF_W | PF_X)) != PF_R) continue;
    const std::size_t begin = constants.size();
    constants.resize(std::min<std::size_t>(begin + segment.p_filesz, kMaxConstants));
    constants.resize(
        begin + file.read_at(segment.p_offset, constants.data() + begin, constants.size() - begin));
  }
  return constants;
}

}  // namespace ivy
