// Recovery of the store's log from any bytes: what comes out is always a beginning of what went in.
#include <algorithm>
#include <string>
#include <vector>

#include "rendezvous/engine/engine.h"
#include "rendezvous/log/write_ahead_log.h"
#include "tests/fuzz/targets.h"

namespace ivy::fuzz {
namespace {

struct Recovered {
  std::vector<std::string> records;
  std::uint64_t good_bytes = 0;
  store::LogReader::End end = store::LogReader::End::kClean;
};

Recovered recover(std::string_view bytes, std::size_t cut) {
  store::LogReader reader;
  Recovered recovered;
  for (std::size_t at = 0; at < bytes.size(); at += cut) {
    reader.feed(bytes.substr(at, cut));
    while (const auto record = reader.next()) recovered.records.emplace_back(*record);
  }
  recovered.good_bytes = reader.good_bytes();
  recovered.end = reader.end();
  IVY_ASSERT(reader.records() == recovered.records.size());
  IVY_ASSERT(recovered.good_bytes <= bytes.size());
  return recovered;
}

std::vector<std::string> snapshot_of(const store::Engine& engine) {
  std::vector<std::string> records;
  store::SnapshotCursor cursor;
  engine.write_snapshot(cursor, std::size_t{1} << 30, records);
  return records;
}

// Until a record is refused. A snapshot of what was kept gives the same contents again.
void replay(const std::vector<std::string>& records) {
  store::Engine engine;
  for (const std::string& record : records) {
    if (!engine.replay(record).ok()) return;
  }
  store::Engine copy;
  const std::vector<std::string> snapshot = snapshot_of(engine);
  for (const std::string& record : snapshot) IVY_ASSERT(copy.replay(record).ok());
  IVY_ASSERT(copy.key_count() == engine.key_count());
  IVY_ASSERT(copy.bytes() == engine.bytes());
  IVY_ASSERT(snapshot_of(copy) == snapshot);
}

void expect_beginning(const std::vector<std::string>& whole, const Recovered& recovered) {
  IVY_ASSERT(recovered.records.size() <= whole.size());
  IVY_ASSERT(std::equal(recovered.records.begin(), recovered.records.end(), whole.begin()));
}

// Records made of the input, then one byte of the log bent or its end cut off.
void damage(Input& input) {
  const std::size_t at = input.byte() * std::size_t{256} + input.byte();
  const std::uint8_t how = input.byte();
  std::vector<std::string> records;
  std::string log;
  while (!input.done()) {
    records.emplace_back(input.bytes(input.byte()));
    store::append_record(log, records.size(), records.back());
  }
  IVY_ASSERT(recover(log, std::max<std::size_t>(log.size(), 1)).records == records);
  replay(records);
  if (log.empty()) return;
  if (how == 0) {
    log.resize(at % log.size());
  } else {
    log[at % log.size()] = static_cast<char>(log[at % log.size()] ^ how);
  }
  const Recovered recovered = recover(log, std::max<std::size_t>(log.size(), 1));
  expect_beginning(records, recovered);
  IVY_ASSERT(how == 0 || recovered.records.size() < records.size());
}

}  // namespace

// First byte: 0, a log made of the input and then damaged; 1, effects; else the log itself, in any
// cut.
void write_ahead_log(std::string_view bytes) {
  (void)store::decode_log_head(bytes).ok();
  Input input(bytes);
  const std::uint8_t first = input.byte();
  if (first == 0) return damage(input);
  if (first == 1) return replay({std::string(input.rest())});
  const std::string_view log = input.rest();
  const Recovered whole = recover(log, std::max<std::size_t>(log.size(), 1));
  const Recovered pieces = recover(log, first % std::size_t{32} + 1);
  IVY_ASSERT(whole.records == pieces.records);
  IVY_ASSERT(whole.good_bytes == pieces.good_bytes);
  IVY_ASSERT(whole.end == pieces.end);
  replay(whole.records);
}

}  // namespace ivy::fuzz
