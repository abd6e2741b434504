//go:build test_performance

// Beside Karpenter's scheduling_benchmark_test.go, this file writes what a benchmark schedules, so
// that another scheduler can be given the same: TestWriteInputs calls the benchmark's own functions
// in a fresh process, where the random numbers begin with the benchmark's seed.

package scheduling_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/fake"
	"sigs.k8s.io/karpenter/pkg/test"
)

// TestWriteInputs writes pods.json, nodepool.json and catalog.json of the benchmark INPUTS_CASE
// (diverse-N or preferences-N) into the folder INPUTS_FOLDER.
func TestWriteInputs(t *testing.T) {
	folder := os.Getenv("INPUTS_FOLDER")
	if folder == "" {
		t.Skip("INPUTS_FOLDER is not set")
	}
	kind, number, _ := strings.Cut(os.Getenv("INPUTS_CASE"), "-")
	count, err := strconv.Atoi(number)
	if err != nil {
		t.Fatal(err)
	}
	var pods []*corev1.Pod
	switch kind {
	case "diverse":
		pods = makeDiversePods(count)
	case "preferences":
		pods = makePreferencePods(count)
	default:
		t.Fatalf("unknown kind of pods %q", kind)
	}
	write(t, folder, "pods.json", map[string]any{"apiVersion": "v1", "kind": "List", "items": pending(pods)})
	write(t, folder, "nodepool.json", nodePool())
	types := []any{}
	for _, instanceType := range fake.InstanceTypes(400) {
		types = append(types, catalogEntry(instanceType))
	}
	write(t, folder, "catalog.json", types)
}

// pending returns the pods as the API server has them while they wait: the benchmark hands its pods
// to the scheduler directly, without the condition by which pending pods are recognized.
func pending(pods []*corev1.Pod) []*corev1.Pod {
	for i, pod := range pods {
		pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		pod.Name = fmt.Sprintf("pod-%05d", i)
		pod.CreationTimestamp = metav1.NewTime(time.Date(2026, 3, 1, 11, 0, 0, 0, time.UTC))
		pod.Status.Phase = corev1.PodPending
		pod.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
		}
	}
	return pods
}

// nodePool returns the NodePool of the benchmark, under a name that is always the same.
func nodePool() map[string]any {
	pool := test.NodePool(v1.NodePool{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec: v1.NodePoolSpec{
			Limits: v1.Limits{
				corev1.ResourceCPU:    resource.MustParse("10000000"),
				corev1.ResourceMemory: resource.MustParse("10000000Gi"),
			},
		},
	})
	return map[string]any{
		"apiVersion": "karpenter.sh/v1",
		"kind":       "NodePool",
		"metadata":   map[string]any{"name": pool.Name},
		"spec":       map[string]any{"limits": pool.Spec.Limits, "template": pool.Spec.Template},
	}
}

// catalogEntry returns an instance type in the form of the file that `reconciler plan --catalog` reads.
func catalogEntry(instanceType *cloudprovider.InstanceType) map[string]any {
	requirements := []map[string]any{}
	for _, requirement := range instanceType.Requirements {
		values := requirement.Values()
		sort.Strings(values)
		requirements = append(requirements, map[string]any{
			"key": requirement.Key, "operator": requirement.Operator(), "values": values,
		})
	}
	sort.Slice(requirements, func(i, j int) bool {
		return requirements[i]["key"].(string) < requirements[j]["key"].(string)
	})
	offerings := []map[string]any{}
	for _, offering := range instanceType.Offerings {
		offerings = append(offerings, map[string]any{
			"zone":         offering.Zone(),
			"capacityType": offering.CapacityType(),
			"price":        offering.Price,
			"available":    offering.Available,
		})
	}
	return map[string]any{
		"name":         instanceType.Name,
		"capacity":     instanceType.Capacity,
		"overhead":     instanceType.Overhead.Total(),
		"requirements": requirements,
		"offerings":    offerings,
	}
}

func write(t *testing.T, folder, name string, content any) {
	data, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}
