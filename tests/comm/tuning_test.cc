// The tuning table's text, and worlds that were given one: every way gives the right results at
// every size, and ranks that were given different tables do not begin.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/collectives/selector.h"
#include "comm/collectives/shared_collectives.h"
#include "comm/collectives/tuning_text.h"
#include "comm/group/tuning_file.h"
#include "comm/transports/shared_layout.h"
#include "comm/transports/shared_segment.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

using Operation = comm_status::Operation;

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;

TuningTable parsed(const std::string& text) {
  const Result<TuningTable> table = parse_tuning(text, "t");
  EXPECT_TRUE(table.ok()) << table.error().message;
  return table.ok() ? *table : TuningTable();
}

// ---- Text ---------------------------------------------------------------------------------------

TEST(TuningTextTest, ARowSaysWhatItsWordsSay) {
  const TuningTable table = parsed(
      "# operation members over from way\n\n"
      "  all_gather.stores\t9-  shm 3M streaming # Results.\r\n"
      "broadcast.piece 2-8 tcp 100 64K\n"
      "all_reduce 4 tcp 1G built-in");
  ASSERT_EQ(table.size(), 3U);
  TuningRow row;
  row.operation = Operation::kAllReduce;
  row.over = Over::kTcp;
  row.members_least = row.members_most = 4;
  row.from = 1024 * kMiB;
  row.is_built_in = true;
  EXPECT_EQ(table[0], row);
  EXPECT_EQ(table[1].operation, Operation::kBroadcast);
  EXPECT_EQ(table[1].aspect, Aspect::kPiece);
  EXPECT_EQ(table[1].members_least, 2U);
  EXPECT_EQ(table[1].members_most, 8U);
  EXPECT_EQ(table[1].from, 100U);
  EXPECT_EQ(table[1].value, 64 * kKiB);
  EXPECT_EQ(table[2].aspect, Aspect::kStores);
  EXPECT_EQ(table[2].members_least, 9U);
  EXPECT_EQ(table[2].members_most, std::numeric_limits<std::uint32_t>::max());
  EXPECT_EQ(table[2].value, static_cast<std::uint64_t>(Stores::kStreaming));
}

TEST(TuningTextTest, TurnsBackIntoItsRows) {
  const std::string text =
      "all_reduce any shm 1K slots\nall_reduce any shm 3000 built-in\nall_reduce 2 tcp 0 sliced\n"
      "all_reduce.registered any shm 1M copied\nall_reduce.piece any tcp 0 5000\n"
      "broadcast.stores 2-3 shm 0 cached\nall_gather 2 shm 0 kernel\nall_gather 3- shm 5 eager\n";
  const TuningTable table = parsed(text);
  ASSERT_EQ(table.size(), 8U);
  EXPECT_EQ(parsed(tuning_text(table)), table);
  EXPECT_EQ(tuning_hash(parsed("# Another order.\n" + tuning_text(table))), tuning_hash(table));
  EXPECT_EQ(tuning_hash(parsed("all_gather 2 shm 64K slots\n")),
            tuning_hash(parsed("\tall_gather 2 shm 65536 slots # The same.\n")));
  EXPECT_NE(tuning_hash(parsed("all_gather 2 shm 64K slots\n")),
            tuning_hash(parsed("all_gather 2 shm 64K kernel\n")));
}

TEST(TuningTextTest, WhatIsWrongIsNamedWithItsPlace) {
  struct Case {
    const char* text;
    const char* place;
    const char* what;
    const char* fix;
  };
  const Case cases[] = {
      {"all_gather any shm 0", "t:1:21: ", "4 words", "OPERATION MEMBERS"},
      {"all_gather any shm 0 slots 1", "t:1:28: ", "6 words", "OPERATION MEMBERS"},
      {"#\n allgather any shm 0 slots", "t:2:2: ", "\"allgather\"", "all_gather"},
      {"barrier any shm 0 slots", "t:1:1: ", "\"barrier\"", "all_reduce"},
      {"all_gather.speed any shm 0 slots", "t:1:11: ", "\".speed\"", ".stores"},
      {"all_gather 0 shm 0 slots", "t:1:12: ", "\"0\"", "2-8"},
      {"all_gather 8-2 shm 0 slots", "t:1:12: ", "\"8-2\"", "2-8"},
      {"all_gather -2 shm 0 slots", "t:1:12: ", "\"-2\"", "2-8"},
      {"all_gather 2,3 shm 0 slots", "t:1:12: ", "\"2,3\"", "2-8"},
      {"all_gather any ssh 0 slots", "t:1:16: ", "\"ssh\"", "shm"},
      {"all_gather any tcp 0 sliced", "t:1:16: ", "no choice over tcp", "docs/tuning.md"},
      {"scatter any shm 0 slots", "t:1:13: ", "no choice over shm", "docs/tuning.md"},
      {"all_gather any shm 64k slots", "t:1:20: ", "\"64k\"", "64K"},
      {"all_gather any shm -1 slots", "t:1:20: ", "\"-1\"", "64K"},
      {"all_gather any shm 99999999999G slots", "t:1:20: ", "no number of bytes", "64K"},
      {"all_gather any shm 0 kernal", "t:1:22: ", "\"kernal\"", "eager, slots, kernel or built-in"},
      {"reduce any shm 0 kernel", "t:1:18: ", "\"kernel\"", "eager, slots or built-in"},
      {"all_reduce any tcp 0 slots", "t:1:22: ", "\"slots\"", "whole, sliced or built-in"},
      {"all_reduce.piece any tcp 0 1K", "t:1:28: ", "\"1K\"", "4K to 256M"},
      {"all_reduce.stores any shm 0 slots", "t:1:29: ", "\"slots\"", "cached, streaming"},
      {"reduce any shm 1 slots\nreduce any shm 1 eager", "t:2:1: ", "line 1", "leave one"},
      {"reduce 2-4 shm 1 slots\n\nreduce 4- shm 9 eager", "t:3:1: ", "line 1, 2-4", "same members"},
      {"reduce any shm 1 slots\nreduce 2 shm 9 eager", "t:2:1: ", "any", "same members"},
      {"all_gather any shm 0 sl\x1bots", "t:1:22: ", "\"sl?ots\"", "slots"},
  };
  for (const Case& wrong : cases) {
    SCOPED_TRACE(wrong.text);
    const Result<TuningTable> table = parse_tuning(wrong.text, "t");
    ASSERT_FALSE(table.ok());
    EXPECT_EQ(table.error().code, Code::kInvalidArgument);
    EXPECT_TRUE(table.error().message.starts_with(wrong.place)) << table.error().message;
    EXPECT_NE(table.error().message.find(wrong.what), std::string::npos) << table.error().message;
    EXPECT_NE(table.error().fix.find(wrong.fix), std::string::npos) << table.error().fix;
  }
}

TEST(TuningTextTest, ItsSizeHasALimit) {
  std::string rows;
  for (std::size_t row = 0; row <= kTuningRowsMax; ++row) {
    rows += "scan any shm " + std::to_string(row) + " slots\n";
  }
  ASSERT_FALSE(parse_tuning(rows, "t").ok());
  EXPECT_TRUE(parse_tuning(rows, "t").error().message.starts_with("t:1001:1: "));
  EXPECT_FALSE(parse_tuning(std::string(kTuningTextMax + 1, '#'), "t").ok());
}

// ---- What ranks say of theirs -------------------------------------------------------------------

// A file of this test's, gone at its end.
class TableFile {
 public:
  explicit TableFile(const std::string& text) {
    char path[] = "/tmp/ivy-tuning-XXXXXX";
    close(mkstemp(path));
    path_ = path;
    std::ofstream(path_) << text;
  }
  ~TableFile() { unlink(path_.c_str()); }
  TableFile(const TableFile&) = delete;
  TableFile& operator=(const TableFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(TuningFileTest, WhatSaysTheSameIsTheSame) {
  const TableFile one("all_gather 2 shm 64K slots\n");
  const TableFile other("# By hand.\nall_gather 2 shm 65536 slots");
  const TableFile none("# Nothing.\n");
  EXPECT_FALSE(tuning_trouble(
      {{0, "a", read_tuning(one.path()).said}, {1, "b", read_tuning(other.path()).said}}));
  EXPECT_FALSE(tuning_trouble({{0, "a", ""}, {1, "b", read_tuning(none.path()).said}}));
  EXPECT_EQ(read_tuning(one.path()).table.size(), 1U);
}

TEST(TuningFileTest, WhatCannotBeReadIsSaidAtOnce) {
  EXPECT_NE(read_tuning("/nonexistent/t").said.find("No such file"), std::string::npos);
  EXPECT_NE(read_tuning("/tmp").said.find("it is no file"), std::string::npos);
  const TableFile pipe("");
  unlink(pipe.path().c_str());
  ASSERT_EQ(mkfifo(pipe.path().c_str(), 0600), 0);
  EXPECT_NE(read_tuning(pipe.path()).said.find("it is no file"), std::string::npos);
  const TableFile bad("all_gather any shm 0 fast\n");
  const std::optional<Error> trouble =
      tuning_trouble({{0, "a", ""}, {1, "b", read_tuning(bad.path()).said}});
  ASSERT_TRUE(trouble);
  EXPECT_EQ(trouble->message.find("rank 1 on b: " + bad.path() + ":1:22: "), 0U)
      << trouble->message;
  EXPECT_NE(trouble->fix.find("kernel"), std::string::npos);
}

// ---- The way that is taken ----------------------------------------------------------------------

// Two members as threads; what each says with `body`.
template <class Body>
void run_members(const TuningTable& table, Body body) {
  Result<std::unique_ptr<SharedSegment>> made = SharedSegment::create(2);
  ASSERT_TRUE(made.ok());
  const std::shared_ptr<SharedSegment> segment = std::move(made).value();
  std::vector<std::unique_ptr<SharedGroup>> groups;
  for (std::uint32_t member = 0; member < 2; ++member) {
    SharedGroupOptions options;
    options.communicator = "threads";
    options.host = "here";
    options.members = {{0, 0, 0}, {1, 1, 0}};
    options.self = member;
    options.has_processor_each = false;
    options.selector = std::make_shared<const Selector>(Over::kShm, 2, table);
    groups.push_back(std::make_unique<SharedGroup>(segment, std::move(options), nullptr));
  }
  std::thread other([&] { body(*groups[1]); });
  body(*groups[0]);
  other.join();
}

// How many chunks of the slots an all_gather of such blocks took.
std::uint64_t chunks_of_all_gather(const std::string& text, std::size_t bytes) {
  std::uint64_t chunks = 0;
  run_members(parsed(text), [&](SharedGroup& group) {
    Deadline deadline(ivy::test::stretched(seconds(60)));
    OperationShape shape;
    shape.operation = Operation::kAllGather;
    shape.count = bytes;
    std::vector<std::uint8_t> send(bytes);
    std::iota(send.begin(), send.end(), static_cast<std::uint8_t>(group.self() * 91));
    std::vector<std::uint8_t> all(2 * bytes);
    const Blocks blocks = Blocks::even(2, bytes);
    ASSERT_TRUE(shared_all_gather(group, OperationCall{shape, 1, deadline}, send.data(),
                                  {all.data(), 0, blocks}));
    for (std::size_t i = 0; i < bytes; ++i) {
      ASSERT_EQ(all[i], static_cast<std::uint8_t>(i)) << i;
      ASSERT_EQ(all[bytes + i], static_cast<std::uint8_t>(i + 91)) << i;
    }
    if (group.self() == 0) chunks = group.slots().take(0);
  });
  return chunks;
}

TEST(TuningWayTest, TheRowsDecide) {
  EXPECT_EQ(chunks_of_all_gather("", kEagerBytes / 2), 0U);
  EXPECT_EQ(chunks_of_all_gather("", kEagerBytes / 2 + 1), 1U);
  EXPECT_EQ(chunks_of_all_gather("", kMiB), 0U);  // By the kernel.
  EXPECT_EQ(chunks_of_all_gather("all_gather any shm 0 slots", 100), 1U);
  EXPECT_EQ(chunks_of_all_gather("all_gather any shm 0 slots", kMiB), 4U);
  EXPECT_EQ(chunks_of_all_gather("all_gather 3- shm 0 slots", kMiB), 0U);
  EXPECT_EQ(chunks_of_all_gather("all_gather any shm 0 kernel", 100), 0U);
  EXPECT_EQ(chunks_of_all_gather("all_gather any shm 0 kernel", 20 * kMiB), 0U);
}

// How many chunks of the slots member 0 fills in an all_reduce, in place on those members.
std::uint64_t chunks_filled_by_all_reduce(const std::string& text, std::size_t bytes,
                                          std::uint32_t in_place_on) {
  std::uint64_t chunks = 0;
  run_members(parsed(text), [&](SharedGroup& group) {
    Deadline deadline(ivy::test::stretched(seconds(60)));
    const std::size_t count = bytes / 4;
    OperationShape shape;
    shape.operation = Operation::kAllReduce;
    shape.count = count;
    ReduceRule rule;
    rule.dtype = Dtype::kU32;
    std::vector<std::uint32_t> send(count);
    std::iota(send.begin(), send.end(), group.self() * 977);
    std::vector<std::uint32_t> other(count);
    std::vector<std::uint32_t>& receive = (in_place_on >> group.self() & 1) != 0 ? send : other;
    ASSERT_TRUE(shared_all_reduce(group, OperationCall{shape, 1, deadline},
                                  {rule, send.data(), receive.data(), count}));
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(receive[i], 2 * i + 977) << i;
    if (group.self() == 0) chunks = group.slots().filled();
  });
  return chunks;
}

TEST(TuningWayTest, OnlyMembersThatAllWorkInPlaceReduceByTheKernel) {
  constexpr std::uint32_t kBoth = 3;
  EXPECT_EQ(chunks_filled_by_all_reduce("", 4 * kMiB - 64, kBoth), 16U);
  for (const std::size_t bytes : {4 * kMiB, 4 * kMiB + 4, 5 * kMiB + 68, 32 * kMiB}) {
    EXPECT_EQ(chunks_filled_by_all_reduce("", bytes, kBoth), 0U) << bytes;
  }
  EXPECT_EQ(chunks_filled_by_all_reduce("", 32 * kMiB + 4, kBoth), 129U);
  for (const std::uint32_t in_place_on : {0U, 1U, 2U}) {
    EXPECT_EQ(chunks_filled_by_all_reduce("", 8 * kMiB, in_place_on), 32U) << in_place_on;
  }
  const char* const all_by_kernel = "all_reduce any shm 0 kernel";
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{4}, std::size_t{100}, kMiB + 4}) {
    EXPECT_EQ(chunks_filled_by_all_reduce(all_by_kernel, bytes, kBoth), 0U) << bytes;
  }
  EXPECT_EQ(chunks_filled_by_all_reduce("all_reduce any shm 0 slots", 8 * kMiB, kBoth), 32U);
}

// ---- Worlds -------------------------------------------------------------------------------------

// What rank `from` gives to rank `to` (or to all) at a place.
std::uint32_t value_of(int from, int to, std::size_t index) {
  return static_cast<std::uint32_t>(index * 2654435761U) ^
         static_cast<std::uint32_t>(from * 40503 + to * 977);
}
constexpr int kAll = 31;

using Words = std::vector<std::uint32_t>;

Words given(int from, int to, std::size_t count) {
  Words words(count);
  for (std::size_t i = 0; i < count; ++i) words[i] = value_of(from, to, i);
  return words;
}

// Block by block: what `rank` gets from each.
Words from_all(int ranks, int to, std::size_t count) {
  Words all;
  for (int from = 0; from < ranks; ++from) {
    const Words block = given(from, to, count);
    all.insert(all.end(), block.begin(), block.end());
  }
  return all;
}

Words summed(int ranks, int to, std::size_t count) {
  Words sums(count, 0);
  for (int from = 0; from < ranks; ++from) {
    for (std::size_t i = 0; i < count; ++i) sums[i] += value_of(from, to, i);
  }
  return sums;
}

// Registered memory or plain.
class Buffer {
 public:
  Buffer(ivy_comm* world, bool is_registered, const Words& words)
      : count_(words.size()), plain_(is_registered ? Words() : words) {
    if (!is_registered) return;
    EXPECT_EQ(ivy_mem_alloc(world, count_ * 4, &memory_), IVY_OK) << ivy_last_error();
    std::copy(words.begin(), words.end(), data());
  }
  ~Buffer() { ivy_mem_free(memory_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::uint32_t* data() {
    return memory_ != nullptr ? static_cast<std::uint32_t*>(memory_) : plain_.data();
  }
  Words words() { return Words(data(), data() + count_); }

 private:
  std::size_t count_;
  void* memory_ = nullptr;
  Words plain_;
};

// Every operation that has a choice, once, with blocks of `bytes`.
void check_operations(ivy_comm* world, bool is_registered, std::size_t bytes) {
  SCOPED_TRACE(std::to_string(bytes) + " bytes");
  const std::size_t count = bytes / 4;
  const int rank = ivy_comm_rank(world);
  const int ranks = ivy_comm_size(world);
  const auto blocks = static_cast<std::size_t>(ranks) * count;
  Words to_each;
  for (int to = 0; to < ranks; ++to) {
    const Words block = given(rank, to, count);
    to_each.insert(to_each.end(), block.begin(), block.end());
  }
  Buffer own(world, is_registered, given(rank, kAll, count));
  Buffer each(world, is_registered, to_each);
  Buffer one(world, is_registered, Words(count));
  Buffer all(world, is_registered, Words(blocks));

  EXPECT_EQ(ivy_all_gather(world, own.data(), all.data(), count, IVY_U32, nullptr), IVY_OK);
  EXPECT_TRUE(all.words() == from_all(ranks, kAll, count)) << "all_gather";
  EXPECT_EQ(ivy_all_to_all(world, each.data(), all.data(), count, IVY_U32, nullptr), IVY_OK);
  EXPECT_TRUE(all.words() == from_all(ranks, rank, count)) << "all_to_all";
  EXPECT_EQ(ivy_all_reduce(world, own.data(), one.data(), count, IVY_U32, IVY_SUM, nullptr),
            IVY_OK);
  EXPECT_TRUE(one.words() == summed(ranks, kAll, count)) << "all_reduce";
  for (const bool is_everywhere : {true, false}) {
    Buffer here(world, is_registered && (is_everywhere || rank == 0), given(rank, kAll, count));
    const bool is_in_place = is_everywhere || rank > 0;
    EXPECT_EQ(ivy_all_reduce(world, is_in_place ? IVY_IN_PLACE : own.data(), here.data(), count,
                             IVY_U32, IVY_SUM, nullptr),
              IVY_OK);
    EXPECT_TRUE(here.words() == summed(ranks, kAll, count)) << "all_reduce in place";
  }
  EXPECT_EQ(ivy_reduce_scatter(world, each.data(), one.data(), count, IVY_U32, IVY_SUM, nullptr),
            IVY_OK);
  EXPECT_TRUE(one.words() == summed(ranks, rank, count)) << "reduce_scatter";
  EXPECT_EQ(ivy_reduce(world, own.data(), one.data(), count, IVY_U32, IVY_SUM, 1, nullptr), IVY_OK);
  if (rank == 1) {
    EXPECT_TRUE(one.words() == summed(ranks, kAll, count)) << "reduce";
  }
  EXPECT_EQ(ivy_scan(world, own.data(), one.data(), count, IVY_U32, IVY_SUM, nullptr), IVY_OK);
  EXPECT_TRUE(one.words() == summed(rank + 1, kAll, count)) << "scan";
  EXPECT_EQ(ivy_gather(world, own.data(), all.data(), count, IVY_U32, 1, nullptr), IVY_OK);
  if (rank == 1) {
    EXPECT_TRUE(all.words() == from_all(ranks, kAll, count)) << "gather";
  }
  EXPECT_EQ(ivy_scatter(world, each.data(), one.data(), count, IVY_U32, 1, nullptr), IVY_OK);
  EXPECT_TRUE(one.words() == given(1, rank, count)) << "scatter";
  EXPECT_EQ(ivy_broadcast(world, own.data(), count, IVY_U32, 1, nullptr), IVY_OK);
  EXPECT_TRUE(own.words() == given(1, kAll, count)) << "broadcast";
}

// Every operation's rows with these ways, where it has them.
std::string every(const std::string& aspect, const std::string& over, const std::string& way) {
  std::string text;
  for (const char* const operation : {"all_reduce", "reduce", "reduce_scatter", "broadcast",
                                      "all_gather", "gather", "scatter", "all_to_all", "scan"}) {
    const std::string line = operation + aspect + " any " + over + " 0 " + way + "\n";
    if (parse_tuning(line, "t").ok()) text += line;
  }
  return text;
}

struct Case {
  const char* name;
  std::string text;
  Hosts hosts;
  bool is_registered = false;
};

std::vector<Case> all_cases() {
  const std::string slots = every("", "shm", "slots");
  const std::string streaming = every(".stores", "shm", "streaming");
  return {{"Slots", slots, one_host(2)},
          {"SlotsOfThree", slots + streaming, one_host(3)},
          {"Kernel", every("", "shm", "kernel"), one_host(2)},
          {"KernelOfThree", every("", "shm", "kernel") + streaming, one_host(3)},
          {"Eager", every("", "shm", "eager"), one_host(3)},
          {"Streaming", streaming, one_host(2)},
          {"Cached", every(".stores", "shm", "cached"), one_host(2)},
          {"Copied", every(".registered", "shm", "copied"), one_host(2), true},
          {"Mapped", slots + every(".registered", "shm", "mapped") + streaming, one_host(2), true},
          {"Whole", every("", "tcp", "whole"), {2, 1}},
          {"Sliced", every("", "tcp", "sliced") + slots, {2, 1}},
          {"SmallPieces", every(".piece", "tcp", "5000") + slots, {1, 2}},
          {"LargePieces", every(".piece", "tcp", "256M"), host_each(2)}};
}

class TuningWorldTest : public testing::TestWithParam<Case> {};

TEST_P(TuningWorldTest, EveryWayGivesTheRightResults) {
  ASSERT_NE(GetParam().text, "");
  const TableFile file(GetParam().text);
  const std::string path = file.path();
  WorldOptions options;
  options.deadline = seconds(100);
  const std::vector<RankEnd> ends = run_world(
      GetParam().hosts,
      [&](int) {
        setenv("IVY_TUNING_FILE", path.c_str(), 1);
        World world;
        ASSERT_TRUE(world);
        std::vector<std::size_t> sizes = {
            0,         4,       kInlineBytes, kEagerBytes, kEagerBytes + 4,
            64 * kKiB, 300'004, kMiB,         4 * kMiB + 4};
        // Between hosts every byte passes the loopback connection; one host has the time.
        if (GetParam().hosts.size() == 1) sizes.push_back(16 * kMiB);
        for (const std::size_t bytes : sizes) {
          check_operations(world, GetParam().is_registered, bytes);
        }
      },
      options);
  expect_well(ends);
}

INSTANTIATE_TEST_SUITE_P(Worlds, TuningWorldTest, testing::ValuesIn(all_cases()),
                         [](const auto& of) { return std::string(of.param.name); });

TEST(TuningWorldsTest, DifferentTablesAreAnErrorOnEveryRank) {
  const TableFile one("all_gather 2 shm 64K slots\n");
  const TableFile other("all_gather 2 shm 64K kernel\n");
  const TableFile bad("all_gather 2 shm 64K\n");
  struct Wrong {
    std::string first;
    std::string second;
    std::vector<std::string> named;
  };
  const std::vector<Wrong> cases = {
      {one.path(),
       other.path(),
       {"different tuning tables", one.path(), other.path(), "rank 0 on ", "rank 1 on "}},
      {"", other.path(), {"rank 0 on ", "has none", other.path()}},
      {one.path(), bad.path(), {"rank 1 on ", bad.path() + ":1:21: "}},
      {"/nonexistent/table", "", {"rank 0 on ", "IVY_TUNING_FILE=/nonexistent/table"}}};
  for (const Wrong& wrong : cases) {
    const std::vector<RankEnd> ends = run_world(one_host(2), [&](int rank) {
      const std::string& path = rank == 0 ? wrong.first : wrong.second;
      if (!path.empty()) setenv("IVY_TUNING_FILE", path.c_str(), 1);
      ivy_comm* world = nullptr;
      EXPECT_NE(ivy_init(nullptr, &world), IVY_OK);
      const std::string text = ivy_last_error();
      for (const std::string& named : wrong.named) {
        EXPECT_NE(text.find(named), std::string::npos) << text << "\nlacks " << named;
      }
    });
    expect_well(ends);
  }
}

// A world may be made again with another table: how a tuning run compares ways.
TEST(TuningWorldsTest, EachWorldReadsItsOwn) {
  const TableFile slots("all_gather any shm 0 slots\n");
  const std::vector<RankEnd> ends = run_world(one_host(2), [&](int) {
    for (int round = 0; round < 6; ++round) {
      if (round % 2 == 0) {
        setenv("IVY_TUNING_FILE", slots.path().c_str(), 1);
      } else {
        unsetenv("IVY_TUNING_FILE");
      }
      World world;
      ASSERT_TRUE(world);
      check_operations(world, false, 128 * kKiB);
    }
  });
  expect_well(ends);
}

}  // namespace
}  // namespace ivy::comm::test
