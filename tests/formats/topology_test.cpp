// Descriptions of machines: what each says, what it does not, and what is refused.
#include "cuboid/formats/topology.h"

#include <fstream>
#include <sstream>

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "cuboid/core/error.h"
#include "cuboid/formats/cluster_file.h"

namespace cuboid {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kCases = CUBOID_TEST_DATA "/cases/";

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

template <typename Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    return error.what();
  }
  return "not refused";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

const TopologyLevel& level(const std::vector<TopologyLevel>& all, const std::string& name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& l) { return l.name == name; });
  if (found == all.end()) throw std::runtime_error("no level " + name);
  return *found;
}

TEST(NvidiaTopology, ReadsADgxA100) {
  const Topology t = read_topology(kCases + "topo/dgx-a100-8gpu-10nic.txt");
  const NodeKind& kind = t.kinds.at(0);
  ASSERT_EQ(kind.devices.size(), 8U);
  ASSERT_EQ(kind.nics.size(), 10U);
  const std::vector<int> numa = {3, 3, 1, 1, 7, 7, 5, 5};
  for (int g = 0; g < 8; ++g) {
    EXPECT_EQ(kind.devices[static_cast<std::size_t>(g)].numa, numa[static_cast<std::size_t>(g)]);
    for (int h = 0; h < 8; ++h) {
      if (g == h) continue;
      EXPECT_EQ(kind.path(g, h).kind, PathKind::nvlink);
      EXPECT_EQ(kind.path(g, h).links, 12);
    }
    EXPECT_THAT(kind.nics_of(g), ElementsAre(g / 2 * 2, g / 2 * 2 + 1));
    for (int n = 0; n < 10; ++n) EXPECT_EQ(kind.nic_path(g, n).kind, n / 2 == g / 2 ? PathKind::pxb : PathKind::sys);
  }
  EXPECT_EQ(kind.nics[9].name, "mlx5_9");
  EXPECT_EQ(kind.nics[3].numa, 1);
  EXPECT_EQ(kind.nics[8].numa, std::nullopt);
  EXPECT_EQ(kind.devices[2].cpus, "16-31,144-159");
  const auto all = levels(t);
  EXPECT_EQ(level(all, "nvlink domain").groups.size(), 1U);
  EXPECT_DOUBLE_EQ(level(all, "nvlink domain").bandwidth, 12 * 25e9);
}

TEST(NvidiaTopology, ReadsAnOldDriversMatrix) {
  const Topology t = read_topology(kCases + "topo/pcie-only-4gpu-olddriver.txt");
  const NodeKind& kind = t.kinds.at(0);
  EXPECT_EQ(kind.devices[3].numa, std::nullopt);  // unknown, not 0
  EXPECT_EQ(kind.devices[3].cpus, "1,3,5,7,9,11");
  EXPECT_EQ(kind.path(0, 1).kind, PathKind::pix);
  EXPECT_EQ(kind.path(2, 1).kind, PathKind::pxb);
  EXPECT_EQ(kind.path(3, 2).kind, PathKind::sys);
  EXPECT_THAT(t.notes, testing::Contains(HasSubstr("no network card is described")));
  // What a terminal or a mail program makes of it.
  const std::string text = text_of(kCases + "topo/pcie-only-4gpu-olddriver.txt");
  std::string spaces;
  for (char c : text) spaces += c == '\t' ? std::string("    ") : std::string(1, c);
  EXPECT_EQ(parse_nvidia_topology(spaces, "x").kinds[0].paths, kind.paths);
  EXPECT_EQ(parse_nvidia_topology("\033[4m" + replaced(text, "GPU0", "GPU0\033[0m"), "x").kinds[0].paths, kind.paths);
}

TEST(NvidiaTopology, RefusesWhatContradictsItself) {
  EXPECT_THAT(
      refusal([] { read_topology(kCases + "topo/bad-asymmetric.txt"); }),
      AllOf(HasSubstr("bad-asymmetric.txt"), HasSubstr("GPU0 to GPU3 is NV4"), HasSubstr("GPU3 to GPU0 is SYS")));
  EXPECT_THAT(refusal([] { read_topology(kCases + "topo/bad-p2p-matrix.txt"); }),
              AllOf(HasSubstr("topo -p2p"), HasSubstr("topo -m")));
  const std::string good = text_of(kCases + "topo/pcie-only-4gpu-olddriver.txt");
  const auto parse = [](const std::string& text) { return refusal([&] { parse_nvidia_topology(text, "t"); }); };
  EXPECT_THAT(parse(replaced(good, "PIX", "PIG")), HasSubstr("line 2: GPU0 to GPU1: unknown path 'PIG'"));
  EXPECT_THAT(parse(replaced(good, "\nGPU3", "\nGPU4")),
              AllOf(HasSubstr("'GPU4' is not a column"), HasSubstr("GPU3 but no row")));
  EXPECT_THAT(parse(replaced(good, "\tSYS\t0,2", "\t0,2")), HasSubstr("GPU0 to GPU3: unknown path '0,2,4,6,8,10'"));
  EXPECT_THAT(parse("\tGPU0\nGPU0\tNV99999999999\n"), HasSubstr("unknown path"));
  EXPECT_THAT(parse(""), HasSubstr("no GPU columns"));
}

TEST(NvidiaTopology, NamesWhatIsMissing) {
  const std::string text = text_of(kCases + "topo/dgx-a100-8gpu-10nic.txt");
  EXPECT_THAT(parse_nvidia_topology(text + "  NIC10: mlx5_10\n", "t").notes,
              testing::Contains(HasSubstr("NIC10 (mlx5_10) is in the legend but not in the matrix")));
  const Topology gap = parse_nvidia_topology("\tGPU0\tGPU2\nGPU0\t X \tNV4\nGPU2\tNV4\t X \n", "t");
  EXPECT_THAT(gap.notes, testing::Contains(HasSubstr("GPU1 not there")));
}

TEST(NcclTopology, ReadsTwoSockets) {
  const Topology t = read_topology(kCases + "nccl-xml/a100-2socket-4gpu-2nic.xml");
  const NodeKind& kind = t.kinds.at(0);
  ASSERT_EQ(kind.devices.size(), 4U);
  EXPECT_EQ(kind.devices[0].cpus, "0-15,64-79");
  EXPECT_EQ(kind.devices[3].cpus, "16-31,80-95");
  EXPECT_EQ(kind.devices[2].numa, 1);
  for (int a = 0; a < 4; ++a) {
    EXPECT_THAT(kind.nics_of(a), ElementsAre(a / 2));
    EXPECT_EQ(kind.nic_path(a, a / 2).kind, PathKind::pix);
    EXPECT_EQ(kind.nic_path(a, 1 - a / 2).kind, PathKind::sys);
    for (int b = 0; b < a; ++b) {
      EXPECT_EQ(kind.path(a, b).kind, PathKind::nvlink);
      EXPECT_EQ(kind.path(a, b).links, 12);
    }
  }
  EXPECT_NEAR(kind.nics[0].pcie_bandwidth, 31.51e9, 0.01e9);
  EXPECT_DOUBLE_EQ(kind.nics[0].bandwidth, 25e9);
  EXPECT_DOUBLE_EQ(kind.nics[1].wire_bandwidth, 25e9);
  EXPECT_NEAR(kind.nics[1].bandwidth, 7.88e9, 0.01e9);  // the lower counts
}

TEST(NcclTopology, RefusesWithEveryFault) {
  const std::string path = kCases + "nccl-xml/bad-dup-dev-missing-arch-open-tag.xml";
  EXPECT_THAT(refusal([&] { read_topology(path); }), AllOf(HasSubstr("open-tag.xml"), HasSubstr("line 10")));
  const std::string mended = replaced(text_of(path), "  </cpu>", "</pci></cpu>");
  EXPECT_THAT(refusal([&] { parse_nccl_topology(mended, "t"); }),
              AllOf(HasSubstr("version '2'"), HasSubstr("<cpu> has no arch"), HasSubstr("<gpu> dev 0: that of line 4"),
                    HasSubstr("target 0000:9f:00.0 is not in the file")));
  const std::string good = text_of(kCases + "nccl-xml/a100-2socket-4gpu-2nic.xml");
  const auto parse = [](const std::string& text) { return refusal([&] { parse_nccl_topology(text, "t"); }); };
  EXPECT_THAT(parse(replaced(good, "mlx5_0", std::string(10'000, 'm'))),
              HasSubstr("line 16: <net> name: 10000 characters"));
  EXPECT_THAT(parse("<!DOCTYPE a [<!ENTITY b \"c\">]>" + good), HasSubstr("entities"));
  EXPECT_THAT(parse(replaced(good, "16.0 GT/s", "many GT/s")), HasSubstr("link_speed"));
  EXPECT_THAT(parse(replaced(good, "speed=\"200000\"", "speed=\"-1\"")), HasSubstr("speed '-1'"));
  EXPECT_THAT(parse("<graphs version=\"1\"/>"), HasSubstr("<system>"));
  std::string deep = "<system version=\"1\"><cpu numaid=\"0\" affinity=\"1\" arch=\"a\">";
  for (int i = 0; i < 5000; ++i) deep += "<pci busid=\"" + std::to_string(i) + "\" link_width=\"1\">";
  for (int i = 0; i < 5000; ++i) deep += "</pci>";
  EXPECT_THAT(parse(deep + "</cpu></system>"), HasSubstr("nested over 64 deep"));
}

TEST(NcclTopology, ReadsSeveralHosts) {
  const std::string one = text_of(kCases + "nccl-xml/a100-2socket-4gpu-2nic.xml");
  std::string other = one;
  for (std::size_t at; (at = other.find("0x1122")) != std::string::npos;) other.replace(at, 6, "0x3344");
  const auto inside = [](const std::string& text) {
    return text.substr(text.find('\n') + 1, text.find("</system>") - text.find('\n') - 1);
  };
  const Topology both =
      parse_nccl_topology("<system version=\"1\">" + inside(one) + inside(other) + "</system>", "two.xml");
  ASSERT_EQ(both.nodes.size(), 2U);
  EXPECT_EQ(both.nodes[1].name, "two-2");
  EXPECT_EQ(both.kinds[1].paths, both.kinds[0].paths);
}

// A large machine: 8 GPUs with 18 NVLinks to as many switches each and 32 cards; and no descriptor is lost in failures.
TEST(NcclTopology, HasNoSmallLimits) {
  std::string text = "<system version=\"1\">";
  for (int cpu = 0; cpu < 2; ++cpu) {
    text += "<cpu numaid=\"" + std::to_string(cpu) + "\" affinity=\"ff\" arch=\"x86_64\" vendor=\"GenuineIntel\">";
    for (int i = 0; i < 20; ++i) {
      text += "<pci busid=\"" + std::to_string(cpu) + ":" + std::to_string(i) +
              "\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">";
      if (i < 4) {
        text += "<gpu dev=\"" + std::to_string(4 * cpu + i) + "\" sm=\"90\" rank=\"0\">";
        for (int link = 0; link < 18; ++link)
          text += "<nvlink target=\"s" + std::to_string(link) + "\" count=\"1\" tclass=\"0x068000\"/>";
        text += "</gpu>";
      } else {
        const std::string dev = std::to_string(16 * cpu + i - 4);
        text += "<nic><net name=\"mlx5_" + dev + "\" dev=\"" + dev + "\" speed=\"400000\"/></nic>";
      }
      text += "</pci>";
    }
    text += "</cpu>";
  }
  const Topology t = parse_nccl_topology(text + "</system>", "t");
  EXPECT_EQ(t.kinds[0].nics.size(), 32U);
  EXPECT_DOUBLE_EQ(t.kinds[0].path(1, 6).bandwidth, 18 * 25e9);
  const auto open_files = [] {
    int count = 0;
    DIR* folder = opendir("/proc/self/fd");
    while (readdir(folder) != nullptr) ++count;
    closedir(folder);
    return count;
  };
  const int before = open_files();
  for (int i = 0; i < 5000; ++i) {
    refusal([] { read_topology(kCases + "nccl-xml/bad-dup-dev-missing-arch-open-tag.xml"); });
  }
  EXPECT_EQ(open_files(), before);
}

TEST(NcclTopology, NamesWhatIsMissing) {
  std::string good = text_of(kCases + "nccl-xml/a100-2socket-4gpu-2nic.xml");
  const auto net = good.find("<nic>");
  const auto end = good.find("</nic>");
  const Topology t = parse_nccl_topology(good.erase(net, end - net).erase(net, 6), "t");
  EXPECT_THAT(t.notes, AllOf(testing::Contains(HasSubstr("network card dev 0 is not in the file")),
                             testing::Contains(HasSubstr("GPU0 has no network card on its NUMA node")),
                             testing::Not(testing::Contains(HasSubstr("GPU2 has no")))));
}

const char* const kGpuList =
    "GPU 0: NVIDIA A100-PCIE-40GB (UUID: GPU-8932f937-aaaa)\n"
    "  MIG 3g.20gb     Device  0: (UUID: MIG-11)\n"
    "  MIG 3g.20gb     Device  1: (UUID: MIG-22)\n"
    "GPU 1: NVIDIA A100-PCIE-40GB (UUID: GPU-46d0fa75-bbbb)\n";

TEST(VisibleDevices, RenumbersAndHides) {
  const Topology dgx = read_topology(kCases + "topo/dgx-a100-8gpu-10nic.txt");
  const Topology seen = visible_devices(dgx, "3,6,5,4,0,7,1,2");
  EXPECT_EQ(seen.kinds[0].devices[0].name, "GPU3");
  EXPECT_EQ(seen.kinds[0].devices[0].numa, 1);
  EXPECT_THAT(seen.kinds[0].nics_of(0), ElementsAre(2, 3));
  EXPECT_EQ(seen.notes, dgx.notes);  // none is hidden
  const Topology some = visible_devices(dgx, "5,1,8,2");
  ASSERT_EQ(some.kinds[0].devices.size(), 2U);
  EXPECT_EQ(some.kinds[0].devices[0].name, "GPU5");
  EXPECT_THAT(some.notes, AllOf(testing::Contains(HasSubstr("'8' names no single GPU, so it and all after it (8, 2)")),
                                testing::Contains(HasSubstr("hides GPU0, GPU2, GPU3, GPU4, GPU6, GPU7"))));
  EXPECT_THAT(refusal([&] { visible_devices(dgx, "1,2,1"); }), HasSubstr("GPU1 is named twice"));
  EXPECT_THAT(refusal([&] { visible_devices(dgx, "-1"); }), HasSubstr("hides every GPU"));
  EXPECT_THAT(refusal([&] { visible_devices(dgx, "GPU-8932"); }), HasSubstr("nvidia-smi -L"));
}

// NVLink pairs that are crossed: 0-2 and 1-3 are joined, neighbours in number are not.
TEST(VisibleDevices, MendsCrossedPairs) {
  const std::string text =
      "\tGPU0\tGPU1\tGPU2\tGPU3\nGPU0\tX\tSYS\tNV4\tSYS\nGPU1\tSYS\tX\tSYS\tNV4\nGPU2\tNV4\tSYS\tX\tSYS\nGPU3\tSYS\tNV4"
      "\tSYS\tX\n";
  const Topology mended = visible_devices(parse_nvidia_topology(text, "crossed"), "0,2,1,3");
  EXPECT_EQ(mended.kinds[0].path(0, 1).kind, PathKind::nvlink);
  EXPECT_EQ(mended.kinds[0].path(2, 3).kind, PathKind::nvlink);
  EXPECT_EQ(mended.kinds[0].path(1, 2).kind, PathKind::sys);
}

TEST(VisibleDevices, UnderstandsUuidsAndInstances) {
  Topology t = parse_nvidia_topology("\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tNV4\tX\n", "mig");
  add_gpu_list(t, kGpuList, "list");
  const NodeKind& kind = t.kinds[0];
  ASSERT_EQ(kind.devices.size(), 3U);  // two instances, one whole GPU
  for (int a = 0; a < 3; ++a) {
    for (int b = 0; b < a; ++b) EXPECT_EQ(kind.path(a, b).kind, PathKind::host);
  }
  const Topology seen = visible_devices(t, "GPU-46d0,MIG-22");
  EXPECT_EQ(seen.kinds[0].devices[0].name, "GPU1");
  EXPECT_EQ(seen.kinds[0].devices[1].name, "GPU0/MIG1");
  EXPECT_THAT(visible_devices(t, "MIG-22,GPU-8").notes, testing::Contains(HasSubstr("'GPU-8' names no single GPU")));
  EXPECT_THAT(refusal([&] { add_gpu_list(t, "GPU 7: X (UUID: GPU-1)\nnothing\n", "list"); }),
              AllOf(HasSubstr("line 1"), HasSubstr("line 2")));
}

TEST(TopologyFile, GivesBackWhatWasWritten) {
  for (const char* file :
       {"topo/dgx-a100-8gpu-10nic.txt", "topo/pcie-only-4gpu-olddriver.txt", "nccl-xml/a100-2socket-4gpu-2nic.xml"}) {
    const Topology t = read_topology(kCases + file);
    EXPECT_EQ(parse_topology(write_topology(t), "t"), t) << file;
  }
  const Topology both = joined({read_topology(kCases + "nccl-xml/a100-2socket-4gpu-2nic.xml"),
                                read_topology(kCases + "topo/pcie-only-4gpu-olddriver.txt"),
                                read_topology(kCases + "nccl-xml/a100-2socket-4gpu-2nic.xml")});
  EXPECT_EQ(both.kinds.size(), 2U);
  EXPECT_EQ(both.devices(), 12);
  EXPECT_EQ(both.nodes[2].name, "a100-2socket-4gpu-2nic-2");
  EXPECT_EQ(parse_topology(write_topology(both), "t"), both);
  for (const auto& name : cluster_names()) {
    const Topology t = topology_of(load_cluster(name), 0);
    EXPECT_EQ(parse_topology(write_topology(t), "t"), t) << name;
  }
}

RC_GTEST_PROP(TopologyFile, GivesBackAnyValue, ()) {
  Topology t;
  t.name = *rc::gen::string<std::string>();
  t.notes = *rc::gen::container<std::vector<std::string>>(rc::gen::string<std::string>());
  NodeKind& kind = t.kinds.emplace_back();
  const auto amount = rc::gen::map(rc::gen::inRange<std::int64_t>(0, 1'000'000'000),
                                   [](auto n) { return static_cast<double>(n) * 0.1; });
  const int devices = *rc::gen::inRange(1, 5);
  const int nics = *rc::gen::inRange(0, 3);
  for (int d = 0; d < devices; ++d) {
    kind.devices.push_back({"d" + std::to_string(d), static_cast<TopologyDeviceKind>(*rc::gen::inRange(0, 3)), d,
                            *rc::gen::maybe(rc::gen::inRange(0, 9)) ? std::optional<int>(d) : std::nullopt,
                            *rc::gen::string<std::string>(), ""});
  }
  for (int n = 0; n < nics; ++n) kind.nics.push_back({"n" + std::to_string(n), {}, *amount, *amount, *amount});
  const auto path = [&] {
    return Path{static_cast<PathKind>(*rc::gen::inRange(1, 9)), *rc::gen::inRange(0, 3), *amount, *amount};
  };
  kind.paths.resize(static_cast<std::size_t>(devices * devices));
  for (int a = 0; a < devices; ++a) {
    for (int b = 0; b < a; ++b) {
      kind.paths[static_cast<std::size_t>(a * devices + b)] = kind.paths[static_cast<std::size_t>(b * devices + a)] =
          path();
    }
    for (int n = 0; n < nics; ++n) kind.nic_paths.push_back(path());
  }
  t.nodes = {{"a", 0}, {"b", 0}};
  t.fabric = {{"rail", 0, *amount, *amount, true}, {"spine", 0, *amount, *amount, false}};
  // Strings that are not UTF-8 cannot be in a TOML file: the generator makes ASCII and what is above as single bytes.
  const auto ascii = [](std::string& s) {
    std::erase_if(s, [](char c) { return static_cast<unsigned char>(c) > 0x7f; });
  };
  ascii(t.name);
  for (auto& note : t.notes) ascii(note);
  for (auto& d : kind.devices) ascii(d.cpus);
  RC_ASSERT(parse_topology(write_topology(t), "t") == t);
}

TEST(TopologyFile, RefusesWithEveryFault) {
  std::string text = write_topology(read_topology(kCases + "topo/pcie-only-4gpu-olddriver.txt"));
  text = replaced(text, "latency = 3e-06", "latency = -3e-06");
  text = replaced(text, "path = \"sys\"", "path = \"far\"");
  text = replaced(text, "cpus = \"0,2", "cpu = \"0,2");
  EXPECT_THAT(refusal([&] { parse_topology(text, "t.toml"); }),
              AllOf(HasSubstr("path = \"far\": must be one of same, nvlink"),
                    HasSubstr("unknown key cpu; the nearest is cpus")));
  const std::string good = write_topology(read_topology(kCases + "topo/pcie-only-4gpu-olddriver.txt"));
  const auto parse = [](const std::string& t) { return refusal([&] { parse_topology(t, "t.toml"); }); };
  EXPECT_THAT(parse(replaced(good, "latency = 3e-06", "latency = -3e-06")), HasSubstr("GPU0 to GPU1: latency -3e-06"));
  EXPECT_THAT(parse(replaced(good, "{from = 0, to = 1", "{from = 0, to = 4")), HasSubstr("link from 0 to 4"));
  EXPECT_THAT(parse(replaced(good, "{from = 0, to = 1", "{from = 0, to = 2")), HasSubstr("there twice"));
  EXPECT_THAT(parse(replaced(good, "kind = 0", "kind = 3")), HasSubstr("kind 3 is not one of 1"));
  EXPECT_THAT(parse("name = \"x\"\n"), HasSubstr("there are no nodes"));
}

TEST(TopologyOfACluster, HasItsLevels) {
  const Cluster dgx = load_cluster("dgx-a100");
  const Topology t = topology_of(dgx, 20);
  ASSERT_EQ(t.nodes.size(), 3U);
  EXPECT_EQ(t.devices(), 20);
  EXPECT_EQ(t.kinds[static_cast<std::size_t>(t.nodes[2].kind)].devices.size(), 4U);
  EXPECT_THAT(t.kinds[0].nics_of(5), ElementsAre(5));  // a card a GPU
  EXPECT_DOUBLE_EQ(network_path(t, {0, 0}, {1, 3}).bandwidth, dgx.levels[1].link_bandwidth * dgx.levels[1].efficiency);
  EXPECT_THAT(refusal([&] { topology_of(dgx, dgx.devices() + 1); }), HasSubstr("dgx-a100"));
}

TEST(TopologyOfACluster, HasAnEnd) {
  Cluster wide = load_cluster("dgx-a100");
  wide.levels[0].size = 1'200'000'000;
  wide.levels.resize(1);
  EXPECT_THAT(refusal([&] { topology_of(wide, 0); }), HasSubstr("joins 1200000000 devices; a node has at most 4096"));
  Cluster long_one = load_cluster("dgx-a100");
  long_one.levels.resize(2);
  long_one.levels[1].size = 2'000'000'000;
  EXPECT_EQ(topology_of(long_one, 0).devices(), 16);
  EXPECT_THAT(refusal([&] { topology_of(long_one, 1'500'000'000); }), HasSubstr("1500000000 devices"));
  long_one.levels[1].links = 2'000'000'000;
  EXPECT_THAT(refusal([&] { topology_of(long_one, 0); }), HasSubstr("2000000000 links of a node"));
}

}  // namespace
}  // namespace cuboid
