#include "server/store/parse_store.h"

#include <charconv>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/store/items/memcached_items.h"
#include "server/store/items/rocksdb_items.h"
#include "server/store/sequence_store.h"

namespace sis {
namespace {

template <typename Number>
std::optional<Number> ParsePositive(std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && number > 0 ? std::optional(number) : std::nullopt;
}

absl::StatusOr<MemcachedNode> ParseNode(std::string_view text) {
  const auto refuse = [&](std::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("memcached node '", std::string(text), "': ", std::string(what)));
  };
  MemcachedNode node;
  std::string_view address = text;
  if (const size_t star = text.rfind('*'); star != std::string_view::npos) {
    const auto weight = ParsePositive<uint32_t>(text.substr(star + 1));
    if (!weight.has_value()) return refuse("the weight is not a whole number above 0");
    node.weight = *weight;
    address = text.substr(0, star);
  }
  if (address.starts_with('/')) {
    node.host = std::string(address);
    return node;
  }
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return refuse("is not HOST:PORT");
  const auto port = ParsePositive<uint16_t>(address.substr(colon + 1));
  if (!port.has_value()) return refuse("the port is not in [1, 65535]");
  std::string_view host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host.empty()) return refuse("is not HOST:PORT");
  node.host = std::string(host);
  node.port = *port;
  return node;
}

absl::StatusOr<std::vector<MemcachedNode>> ParseNodes(const std::string& text) {
  std::vector<MemcachedNode> nodes;
  std::set<std::pair<std::string, uint16_t>> seen;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    absl::StatusOr<MemcachedNode> node = ParseNode(part);
    if (!node.ok()) return node.status();
    if (!seen.emplace(node->host, node->port).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("memcached node '", node->host, "' is named twice"));
    }
    nodes.push_back(*std::move(node));
  }
  return nodes;
}

struct RocksDbDirectory {
  std::string path;
  bool sync;
};
using Memory = std::monostate;
using Choice = std::variant<Memory, RocksDbDirectory, std::vector<MemcachedNode>>;

absl::StatusOr<Choice> Parse(std::string_view description) {
  constexpr std::string_view kRocksDb = "rocksdb:", kMemcached = "memcached:", kSync = "?sync=1";
  if (description == "memory") return Memory();
  if (description.starts_with(kRocksDb)) {
    std::string_view directory = description.substr(kRocksDb.size());
    const bool sync = directory.ends_with(kSync);
    if (sync) directory.remove_suffix(kSync.size());
    if (directory.empty() || directory.find('?') != std::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("store '", std::string(description), "' is not rocksdb:DIR[?sync=1]"));
    }
    return RocksDbDirectory{std::string(directory), sync};
  }
  if (description.starts_with(kMemcached)) {
    absl::StatusOr<std::vector<MemcachedNode>> nodes =
        ParseNodes(std::string(description.substr(kMemcached.size())));
    if (!nodes.ok()) return nodes.status();
    return *std::move(nodes);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("store '", std::string(description),
                   "' is neither memory, rocksdb:DIR nor memcached:HOST:PORT,..."));
}

}  // namespace

int64_t DamagedFiles(std::string_view description) {
  const absl::StatusOr<Choice> choice = Parse(description);
  const auto* rocksdb = choice.ok() ? std::get_if<RocksDbDirectory>(&*choice) : nullptr;
  return rocksdb == nullptr ? 0 : DamagedRocksDbFiles(rocksdb->path);
}

absl::Status CheckStore(std::string_view description) { return Parse(description).status(); }

absl::StatusOr<std::unique_ptr<SequenceStore>> OpenStore(std::string_view description) {
  const absl::StatusOr<Choice> choice = Parse(description);
  if (!choice.ok()) return choice.status();
  if (std::holds_alternative<Memory>(*choice)) return nullptr;
  const auto* rocksdb = std::get_if<RocksDbDirectory>(&*choice);
  absl::StatusOr<std::unique_ptr<ItemStore>> items =
      rocksdb != nullptr ? OpenRocksDbItems(rocksdb->path, rocksdb->sync)
                         : OpenMemcachedItems(std::get<std::vector<MemcachedNode>>(*choice));
  if (!items.ok()) return items.status();
  return std::make_unique<SequenceStore>(*std::move(items));
}

}  // namespace sis
