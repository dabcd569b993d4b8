// SPDX-License-Identifier: Apache-2.0
#include "proto/wire/status_page.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "proto/wire/control_wire.h"

namespace ivy::comm_status {
namespace {

static_assert(kReports == 256 && kNoRank == control::kNoRank);
static_assert(kNameBytes == control::kMaxNameBytes && kTextBytes == control::kMaxTextBytes);

constexpr std::uint64_t kAlignment = 128;
constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kOutOfMemoryFlag = 1;
constexpr int kLastEndShift = 8;
constexpr int kRejoinsShift = 32;

using ReportCell = Cell<kReportWords>;
struct HostName {
  Cell<kNameBytes / 8> name;
};

constexpr std::uint64_t rounded(std::uint64_t value, std::uint64_t to) {
  return (value + to - 1) / to * to;
}

PageLayout layout_of(const PageShape& shape) {
  PageLayout header{};
  header.magic = kPageMagic;
  header.version = kPageVersion;
  header.world_size = shape.world_size;
  header.local_size = shape.local_size;
  header.hosts = shape.hosts;
  header.generation = shape.generation;
  header.slot_bytes = sizeof(Slot);
  header.deaths_offset = sizeof(PageHeader);
  header.reports_offset =
      rounded(header.deaths_offset + shape.world_size * sizeof(DeathEntry), kAlignment);
  header.hosts_offset = rounded(header.reports_offset + kReports * sizeof(ReportCell), kAlignment);
  header.slots_offset = rounded(header.hosts_offset + shape.hosts * sizeof(HostName), kAlignment);
  header.total_bytes = rounded(header.slots_offset + shape.local_size * sizeof(Slot), kPageBytes);
  return header;
}

std::string limit_text(const char* what, std::uint32_t value, std::uint32_t limit) {
  return std::string("status page: ") + what + " " + std::to_string(value) + "; must be 1 to " +
         std::to_string(limit);
}

template <std::size_t kWords>
std::array<std::uint64_t, kWords> words_of(std::string_view text) {
  std::array<std::uint64_t, kWords> words{};
  std::memcpy(words.data(), text.data(), std::min(text.size(), kWords * 8));
  return words;
}

// Returns the text up to the first zero byte.
std::string text_of(const std::uint64_t* words, std::size_t count) {
  std::string text(count * 8, '\0');
  std::memcpy(text.data(), words, text.size());
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

std::array<std::uint64_t, kRecordWords> words_of(const OperationRecord& record) {
  return std::bit_cast<std::array<std::uint64_t, kRecordWords>>(record);
}

OperationRecord record_of(const std::array<std::uint64_t, kRecordWords>& words) {
  return std::bit_cast<OperationRecord>(words);
}

bool is_dead(RankState state) { return state != RankState::kAlive && state != RankState::kLeft; }

}  // namespace

void SlotView::claim(std::uint32_t rank, std::int32_t pid) {
  // Another process of this rank may have used the slot before: erase its records.
  for (CommunicatorRow& row : slot_->rows) {
    row.name.stamp.store(0, std::memory_order_relaxed);
    row.current.stamp.store(0, std::memory_order_relaxed);
  }
  // The earlier process may have been killed during a write.
  for (auto& place : slot_->finished) place.stamp.store(0, std::memory_order_relaxed);
  slot_->finished_count.store(0, std::memory_order_relaxed);
  slot_->pid.store(pid, std::memory_order_relaxed);
  slot_->rank.store(rank, std::memory_order_release);
}

void SlotView::name_communicator(std::uint32_t row, std::string_view name) {
  IVY_ASSERT(row < kCommunicators);
  constexpr std::size_t kWords = kNameBytes / 8 - 1;
  slot_->rows[row].current.stamp.store(0, std::memory_order_relaxed);
  slot_->rows[row].name.store(words_of<kWords>(name.substr(0, kWords * 8 - 1)));
}

void SlotView::enter(const OperationRecord& record) {
  IVY_ASSERT(record.communicator < kCommunicators);
  CommunicatorRow& row = slot_->rows[record.communicator];
  row.phase.store(static_cast<std::uint64_t>(Phase::kEntered), std::memory_order_relaxed);
  row.current.store(words_of(record));
}

void SlotView::finish(const OperationRecord& record) {
  IVY_ASSERT(record.communicator < kCommunicators);
  slot_->rows[record.communicator].current.store(words_of(record));
  const std::uint64_t index = slot_->finished_count.fetch_add(1, std::memory_order_relaxed);
  // A thread that was delayed for a whole round of the ring may collide with another one.
  slot_->finished[index % kFinished].store_among_many(words_of(record));
}

std::string SlotView::communicator_name(std::uint32_t row) const {
  if (row >= kCommunicators) return {};
  const auto words = slot_->rows[row].name.load();
  return words ? text_of(words->data(), words->size()) : std::string();
}

std::optional<OperationRecord> SlotView::current(std::uint32_t row) const {
  if (row >= kCommunicators) return std::nullopt;
  const auto words = slot_->rows[row].current.load();
  if (!words) return std::nullopt;
  OperationRecord record = record_of(*words);
  record.communicator = static_cast<std::uint16_t>(row);
  return record;
}

Phase SlotView::phase(std::uint32_t row) const {
  if (row >= kCommunicators) return Phase::kEntered;
  return static_cast<Phase>(slot_->rows[row].phase.load(std::memory_order_relaxed) & 0xff);
}

std::uint32_t SlotView::tag_above(std::uint32_t row) const {
  if (row >= kCommunicators) return 0;
  return static_cast<std::uint32_t>(slot_->rows[row].phase.load(std::memory_order_relaxed) >> 32);
}

std::vector<OperationRecord> SlotView::finished(std::size_t limit) const {
  std::vector<OperationRecord> records;
  const std::uint64_t count = slot_->finished_count.load(std::memory_order_acquire);
  const std::uint64_t kept = std::min<std::uint64_t>(count, kFinished);
  for (std::uint64_t i = count; i-- > count - kept;) {
    if (const auto words = slot_->finished[i % kFinished].load())
      records.push_back(record_of(*words));
  }
  // A writer claims an entry before it writes it, so an entry may still hold an older record.
  // Sorting by time puts such a record last.
  std::stable_sort(records.begin(), records.end(),
                   [](const auto& a, const auto& b) { return a.ended_ns > b.ended_ns; });
  if (records.size() > limit) records.resize(limit);
  return records;
}

Result<std::size_t> StatusPage::bytes_of(const PageShape& shape) {
  if (shape.world_size == 0 || shape.world_size > kMaxWorldSize)
    return Error{Code::kInvalidArgument, limit_text("world size", shape.world_size, kMaxWorldSize)};
  if (shape.local_size == 0 || shape.local_size > std::min(kMaxLocalSize, shape.world_size))
    return Error{Code::kInvalidArgument, limit_text("local size", shape.local_size,
                                                    std::min(kMaxLocalSize, shape.world_size))};
  if (shape.hosts == 0 || shape.hosts > shape.world_size)
    return Error{Code::kInvalidArgument,
                 limit_text("number of hosts", shape.hosts, shape.world_size)};
  return static_cast<std::size_t>(layout_of(shape).total_bytes);
}

StatusPage StatusPage::format(void* memory, const PageShape& shape) {
  IVY_ASSERT(bytes_of(shape).ok());
  const PageLayout layout = layout_of(shape);
  std::memcpy(memory, &layout, sizeof(PageLayout));
  StatusPage page(static_cast<PageHeader*>(memory), layout);
  for (std::uint32_t i = 0; i < shape.local_size; ++i)
    page.at<Slot>(layout.slots_offset, i)->rank.store(kNoRank, std::memory_order_relaxed);
  return page;
}

Result<StatusPage> StatusPage::open(void* memory, std::size_t bytes) {
  PageLayout found{};
  if (bytes < sizeof(PageHeader)) return Error{Code::kDataLoss, "status page: too small"};
  std::memcpy(&found, memory, sizeof(PageLayout));
  if (found.magic != kPageMagic)
    return Error{Code::kDataLoss, "status page: not a status page of ivyrun"};
  if (found.version != kPageVersion) {
    return Error{Code::kFailedPrecondition,
                 "status page: layout " + std::to_string(found.version) +
                     ", but this library supports " + std::to_string(kPageVersion),
                 "use the libivycomm of the same ivyrun"};
  }
  const PageShape shape{found.world_size, found.local_size, found.hosts, found.generation};
  IVY_TRY(bytes_of(shape));
  const PageLayout expected = layout_of(shape);
  if (std::memcmp(&found, &expected, sizeof(PageLayout)) != 0 || bytes < expected.total_bytes)
    return Error{Code::kDataLoss, "status page: inconsistent header"};
  return StatusPage(static_cast<PageHeader*>(memory), expected);
}

template <class T>
T* StatusPage::at(std::uint64_t offset, std::size_t index) const {
  return reinterpret_cast<T*>(reinterpret_cast<char*>(header_) + offset) + index;
}

PageShape StatusPage::shape() const {
  return {layout_.world_size, layout_.local_size, layout_.hosts, layout_.generation};
}

void StatusPage::name_host(std::uint32_t host, std::string_view name) {
  IVY_ASSERT(host < layout_.hosts);
  constexpr std::size_t kWords = kNameBytes / 8;
  at<HostName>(layout_.hosts_offset, host)->name.store(words_of<kWords>(name));
}

void StatusPage::set_rank(std::uint32_t rank, const RankStatus& status) {
  IVY_ASSERT(rank < layout_.world_size);
  DeathEntry& entry = *at<DeathEntry>(layout_.deaths_offset, rank);
  const auto before = static_cast<RankState>(entry.state.load(std::memory_order_relaxed));
  entry.code.store(status.code, std::memory_order_relaxed);
  entry.pid.store(status.pid, std::memory_order_relaxed);
  entry.host.store(status.host, std::memory_order_relaxed);
  entry.when_ns.store(status.when_ns, std::memory_order_relaxed);
  entry.flags.store((status.out_of_memory ? kOutOfMemoryFlag : 0) |
                        static_cast<std::uint64_t>(status.last_end) << kLastEndShift |
                        static_cast<std::uint64_t>(status.rejoins) << kRejoinsShift,
                    std::memory_order_relaxed);
  entry.state.store(static_cast<std::uint32_t>(status.state), std::memory_order_release);
  if (is_dead(status.state) && !is_dead(before))
    header_->deaths.fetch_add(1, std::memory_order_release);
}

RankStatus StatusPage::rank(std::uint32_t rank) const {
  IVY_ASSERT(rank < layout_.world_size);
  const DeathEntry& entry = *at<DeathEntry>(layout_.deaths_offset, rank);
  RankStatus status;
  status.state = static_cast<RankState>(entry.state.load(std::memory_order_acquire));
  status.code = entry.code.load(std::memory_order_relaxed);
  status.pid = entry.pid.load(std::memory_order_relaxed);
  status.host = std::min(entry.host.load(std::memory_order_relaxed), layout_.hosts - 1);
  status.when_ns = entry.when_ns.load(std::memory_order_relaxed);
  const std::uint64_t flags = entry.flags.load(std::memory_order_relaxed);
  status.out_of_memory = (flags & kOutOfMemoryFlag) != 0;
  status.last_end = static_cast<RankState>(flags >> kLastEndShift & 0xff);
  status.rejoins = static_cast<std::uint32_t>(flags >> kRejoinsShift);
  return status;
}

std::string StatusPage::host_name(std::uint32_t host) const {
  IVY_ASSERT(host < layout_.hosts);
  const auto words = at<HostName>(layout_.hosts_offset, host)->name.load();
  return words ? text_of(words->data(), words->size()) : std::string();
}

std::uint64_t StatusPage::add_report(const PageReport& report) {
  const std::uint64_t number = header_->reports.load(std::memory_order_relaxed) + 1;
  std::array<std::uint64_t, kReportWords> words{};
  words[0] = number;
  words[1] = std::uint64_t{report.blamed} << 32 | report.reporter;
  words[2] = report.sequence;
  words[3] = report.kind;
  const auto name = words_of<kNameBytes / 8>(report.communicator);
  const auto text = words_of<kTextBytes / 8>(report.text);
  std::copy(name.begin(), name.end(), words.begin() + 4);
  std::copy(text.begin(), text.end(), words.begin() + 4 + kNameBytes / 8);
  at<ReportCell>(layout_.reports_offset, number % kReports)->store(words);
  header_->reports.store(number, std::memory_order_release);
  return number;
}

std::vector<PageReport> StatusPage::reports_after(std::uint64_t after) const {
  std::vector<PageReport> reports;
  const std::uint64_t newest = header_->reports.load(std::memory_order_acquire);
  std::uint64_t number = after + 1;
  if (newest >= kReports) number = std::max(number, newest - kReports + 1);
  for (; number <= newest; ++number) {
    const auto words = at<ReportCell>(layout_.reports_offset, number % kReports)->load();
    // The report was overwritten during this read.
    if (!words || (*words)[0] != number) continue;
    PageReport& report = reports.emplace_back();
    report.number = number;
    report.blamed = static_cast<std::uint32_t>((*words)[1] >> 32);
    report.reporter = static_cast<std::uint32_t>((*words)[1]);
    report.sequence = (*words)[2];
    report.kind = static_cast<std::uint8_t>((*words)[3]);
    report.communicator = text_of(words->data() + 4, kNameBytes / 8);
    report.text = text_of(words->data() + 4 + kNameBytes / 8, kTextBytes / 8);
  }
  return reports;
}

SlotView StatusPage::slot(std::uint32_t slot) const {
  IVY_ASSERT(slot < layout_.local_size);
  return SlotView(at<Slot>(layout_.slots_offset, slot));
}

}  // namespace ivy::comm_status
